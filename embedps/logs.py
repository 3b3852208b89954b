"""What the log of a process beside this one says."""

import os
from pathlib import Path


def last_line(log: Path) -> str:
    """The last line of a process's log that is not empty, without our prefix."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError as error:
        return f"its log cannot be read ({error.strerror})"
    found = [line.strip() for line in lines if line.strip()]
    return found[-1].removeprefix("embedps: ")[:500] if found else "it said nothing"
