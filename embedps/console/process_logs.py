"""How a process beside this one ended, and what its log says."""

import os
import re
import signal
from pathlib import Path

_SAYS_NOTHING = re.compile(r"\s*($|@ +0x[0-9a-f]+ |\*\*\* Check failure stack trace: \*\*\*)")


def last_line(log: Path) -> str:
    """The last line of a process's log that is not empty, without our prefix.

    The stack below a failed check of TensorFlow's is left out: the line above it says what failed.
    """
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError as error:
        return f"its log cannot be read ({error.strerror})"
    found = [line.strip() for line in lines if not _SAYS_NOTHING.match(line)]
    return found[-1].removeprefix("embedps: ")[:500] if found else "it said nothing"


def how_it_ended(code: int) -> str:
    """Says what a process's return code means, as of `subprocess`: a signal's is negative."""
    if code >= 0:
        return f"with code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"by signal {-code}"
