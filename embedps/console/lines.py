"""Prints lines for users. A name in them may come from a stranger's file."""

from __future__ import annotations

import datetime
import json
import sys
from typing import Any, TextIO

from embedps.errors import printable

_WARNING = "warning: "
_is_json = False


def log_as(form: str) -> None:
    """Sets the form of what this process says from now on: "text" or "json"."""
    global _is_json
    _is_json = form == "json"


def is_json() -> bool:
    """Whether each line is a JSON object."""
    return _is_json


def say(text: str, *, file: TextIO | None = None) -> None:
    """Prints one line at once.

    Ends of lines, control characters and bytes that are no UTF-8 are escaped: a name can neither
    forge a line of a log nor move a terminal's cursor. In JSON, what goes to stderr is an error.
    """
    show(printable(text), file=file)


def show(text: str, *, file: TextIO | None = None) -> None:
    """Prints a text of this program's own at once; it may have several lines."""
    if _is_json:
        level = "error" if file is sys.stderr else "info"
        if text.startswith(_WARNING):
            level, text = "warning", text.removeprefix(_WARNING)
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        text = json.dumps({"time": time, "level": level, "event": text})
    print(text, file=file or sys.stdout, flush=True)


def say_json(value: Any) -> None:
    """Prints a value as one line of JSON, in which texts are readable.

    What `say` escapes is escaped as JSON does.
    """
    text = json.dumps(value, ensure_ascii=False)
    print("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text), flush=True)
