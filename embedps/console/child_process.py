"""Ties a child process to the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(pid: int) -> None:
    """Ties this process to the one that started it, and leaves Ctrl-C to that one."""
    # Ctrl-C reaches the whole terminal group; the client is who decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != pid:
        sys.exit(0)  # it had ended before the line above
