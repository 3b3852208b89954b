"""Lines that cannot be read as rows: set aside as JSON lines, with their place and the reason."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BadLine:
    """A line set aside; `line` counts from 1 in its file, `raw` is without the line break."""

    line: int
    reason: str
    raw: bytes
    ends_file: bool = False
    """Whether the file is cut or damaged here: how many lines are lost with it is not known."""

    def to_json(self, file: str) -> str:
        """Returns one line of `_bad_lines.jsonl`; bytes that are not UTF-8 are also in base64."""
        record: dict[str, str | int] = {"file": file, "line": self.line, "reason": self.reason}
        try:
            record["text"] = self.raw.decode("utf-8")
        except UnicodeDecodeError:
            record["text"] = self.raw.decode("utf-8", errors="backslashreplace")
            record["base64"] = base64.b64encode(self.raw).decode("ascii")
        return json.dumps(record)
