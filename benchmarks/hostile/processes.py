"""Limits a process, and reads what it used."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import cpu_secs

_LOOK_SECS = 0.01  # between two looks at a process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a process may take, so that no attack takes down the machine.

    Attributes:
      address_bytes: of its address space (`prlimit --as`).
      descriptors: that it may have open.
      secs: to answer, or to read a file; then it counts as hung.
    """

    address_bytes: int
    descriptors: int
    secs: float

    def command(self) -> list[str]:
        """Gives the beginning of a command whose process has these limits."""
        return ["prlimit", f"--as={self.address_bytes}", f"--nofile={self.descriptors}"]


def resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process; 0 once it has ended."""
    return _status(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """Returns its most since `reset_peak`; 0 once it has ended."""
    return _status(pid, "VmHWM")


def reset_peak(pid: int) -> None:
    """Lets the kernel forget the peak."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status(pid: int, field: str) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.M)
    return int(found[1]) * 1024 if found else 0


class _Use(threading.Thread):
    """Looks at a process, since it may die of what it does."""

    def __init__(self, pid: int) -> None:
        super().__init__(name="use")
        self.cpu_secs, self.peak_bytes = cpu_secs(pid), 0
        self._pid, self._ended = pid, threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_LOOK_SECS):
            with contextlib.suppress(OSError):
                self.cpu_secs = max(self.cpu_secs, cpu_secs(self._pid))
            self.peak_bytes = max(self.peak_bytes, peak_bytes(self._pid))

    def end(self) -> None:
        self._ended.set()
        self.join()


def run_limited(command: Sequence[str], limits: Limits) -> dict[str, Any]:
    """Runs a command that prints a line when it is ready and one of what came.

    Returns:
      What it printed last, the CPU seconds and the most bytes since it was ready, and how it ended:
      0, minus the signal, or None if it was killed because it took too long.
    """
    process = subprocess.Popen(
        [*limits.command(), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # the first line is read apart
    )
    if process.stdout is None or not process.stdout.readline():
        raise RuntimeError(f"{command} did not start: {process.communicate()[1]!r}")
    reset_peak(process.pid)
    began, memory, use = cpu_secs(process.pid), resident_bytes(process.pid), _Use(process.pid)
    use.start()
    try:
        said, errors = process.communicate(timeout=limits.secs)
        ended = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        said, errors = process.communicate()
        ended = None
    use.end()
    lines = (said or errors).decode(errors="replace").splitlines()
    return {
        "said": lines[-1] if lines and ended is not None else "",
        "cpu_secs": round(use.cpu_secs - began, 3),
        "peak_bytes": max(0, use.peak_bytes - memory),
        "ended_with": ended,
    }
