"""Prints lines for users. A name in them may come from a stranger's file."""

from __future__ import annotations

import sys
from typing import TextIO

from embedps.errors import printable


def say(text: str, *, file: TextIO | None = None) -> None:
    """Prints one line at once.

    Ends of lines, control characters and bytes that are no UTF-8 are escaped: a name can neither
    forge a line of a log nor move a terminal's cursor.
    """
    print(printable(text), file=file or sys.stdout, flush=True)
