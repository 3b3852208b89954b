"""Runs work in a process of its own, which a fault may kill."""

import os
import signal
import traceback
from collections.abc import Callable

from embedps.storage import file_io


def arm(fault: str) -> None:
    """Has this process kill itself where a fault says."""
    os.environ["EMBEDPS_FAULT"] = fault  # what the kernels look at, at their first write
    file_io.arm_fault(fault)


def is_killed(what: str, work: Callable[[], None]) -> bool:
    """Runs work in a fork of this process; tells whether it was killed.

    Args:
      what: names the work, for the error of one that fails.
      work: to do.

    Raises:
      SystemExit: the work failed.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if status:
        raise SystemExit(f"{what} ended with status {status}")
    return False
