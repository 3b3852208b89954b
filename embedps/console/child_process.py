"""Starts a Python process with a log, ties it to this one, and tells how it ended."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

PARENT_VARIABLE = "EMBEDPS_PARENT_PID"
"""Tells a child its parent's process id."""

_PR_SET_PDEATHSIG = 1
# Empty lines, the stack below a failed check, and what a server says while all is well: its thread
# that looks for a client may write after the check failed.
_SAYS_NOTHING = re.compile(
    r"\s*($|@ +0x[0-9a-f]+ |\*\*\* Check failure stack trace: \*\*\*"
    r"|embedps: \w+ \d+ has a client$)"
)


class ChildProcess:
    """A Python process that can be started again until it is closed.

    It ends with this process, however this one ends, and with the thread that started it: that is
    the kernel's rule. Its program must call `end_with_parent`.

    Attributes:
      log: the file that its output is appended to.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        stdin: IO[bytes] | None = None,
    ) -> None:
        """Starts it.

        Args:
          arguments: of the Python interpreter.
          log: a file; its directory must be there.
          stdin: a file that it reads from the start, each time that it is started.
        """
        self.log = log
        self._command = [sys.executable, *arguments]
        self._environment = {
            **environment,
            PARENT_VARIABLE: str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
        }
        self._stdin = stdin
        self._closed = False
        self._lock = threading.Lock()  # close() and start() exclude each other
        self._process = self._popen()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def start(self) -> bool:
        """Starts it again after it ended; returns False, without effect, once it is closed."""
        with self._lock:
            if not self._closed:
                self._process = self._popen()
            return not self._closed

    def poll(self) -> int | None:
        """Returns its return code, as `subprocess` has it, or None while it runs."""
        return self._process.poll()

    def wait(self, secs: float | None = None) -> int:
        """Waits until it ends; returns its return code.

        Raises:
          subprocess.TimeoutExpired: it did not end in time.
        """
        return self._process.wait(secs)

    def terminate(self) -> None:
        """Tells it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """Kills it, without waiting for its end."""
        self._process.kill()

    def last_line(self) -> str:
        """Returns the last line of its log: see `last_line`."""
        return last_line(self.log)

    def close(self) -> None:
        """Kills it for good, and waits for its end."""
        with self._lock:
            self._closed = True
            self._process.kill()
            self._process.wait()

    def _popen(self) -> subprocess.Popen[bytes]:
        if self._stdin is not None:
            self._stdin.seek(0)
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=self._stdin or subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def end_with_parent() -> bool:
    """Ties this process to the one that started it as a `ChildProcess`; returns whether one did.

    The kernel then kills it with its parent. Ctrl-C, which reaches the whole terminal group, is
    left to the parent.
    """
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return False
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(0)  # the parent ended before the line above
    return True


def how_it_ended(code: int) -> str:
    """Tells what a return code of `subprocess` means; that of a signal is negative."""
    if code >= 0:
        return f"with code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"by signal {-code}"


def last_line(log: Path) -> str:
    """Returns the last line of a log that is not empty, without our prefix.

    Of a failed check in TensorFlow's C++, that is the check's line and not the stack below it.
    """
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError as error:
        return f"its log cannot be read ({error.strerror})"
    found = [line.strip() for line in lines if not _SAYS_NOTHING.match(line)]
    return found[-1].removeprefix("embedps: ")[:500] if found else "it said nothing"
