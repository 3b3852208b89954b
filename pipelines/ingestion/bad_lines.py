"""Bad lines: input lines that are not rows, set aside as JSON with their place and the reason."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BadLine:
    """A line set aside; `line` counts from 1 in its file, `raw` lacks the line break."""

    line: int
    reason: str
    raw: bytes
    ends_file: bool = False
    """Whether the file is cut or damaged here, so that an unknown number of lines is lost."""

    def to_json(self, file: str) -> str:
        """Formats one line of `_bad_lines.jsonl`; a line that is not UTF-8 is added as base64."""
        record: dict[str, str | int] = {"file": file, "line": self.line, "reason": self.reason}
        try:
            record["text"] = self.raw.decode("utf-8")
        except UnicodeDecodeError:
            record["text"] = self.raw.decode("utf-8", errors="backslashreplace")
            record["base64"] = base64.b64encode(self.raw).decode("ascii")
        return json.dumps(record)
