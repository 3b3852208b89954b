"""What processes used: seconds of processors, and bytes that they read, wrote and sent.

A command counts with all processes that it started and waited for. The kernel adds these up, so
nothing is missed, however short a process lives. Bytes read and written are those of the calls
`read` and `write`, whether a disk, a page in memory or a pipe gave them; pages of mapped files are
not counted. Bytes sent are those of the processes' TCP connections, on loopback too. `ss` is asked
for them several times per second: what a connection sends after the last time is missed.
"""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from benchmarks.child import ChildError
from benchmarks.system_process import tree

_POLL_SECS = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")
_SOCKET = re.compile(r'(\S+) +(\S+) +users:\(\("[^"]*",pid=(\d+).*?\bbytes_sent:(\d+)')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """What was used.

    Attributes:
      cpu_secs: seconds of processors.
      kernel_secs: those of them that were spent in the kernel.
      read_bytes, written_bytes: of calls.
      sent_bytes: over TCP.
    """

    cpu_secs: float
    kernel_secs: float
    read_bytes: float
    written_bytes: float
    sent_bytes: float = 0.0

    def __sub__(self, before: Usage) -> Usage:
        """Gives what was used since."""
        mine, others = dataclasses.asdict(self), dataclasses.asdict(before)
        return Usage(**{name: value - others[name] for name, value in mine.items()})

    def times(self, factor: float) -> Usage:
        """Gives a multiple."""
        return Usage(**{name: value * factor for name, value in dataclasses.asdict(self).items()})


class SentBytes:
    """Counts what a process and its descendants send while the block runs."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._sent: dict[tuple[str, ...], int] = {}
        self._before: dict[tuple[str, ...], int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SentBytes:
        if shutil.which("ss") is None:
            raise ChildError("bytes sent are counted by the command ss: install iproute2")
        self._look()
        self._before = dict(self._sent)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def num_bytes(self) -> int:
        """The bytes until now."""
        return sum(self._sent.values()) - sum(self._before.values())

    def _run(self) -> None:
        while not self._ended.wait(_POLL_SECS):
            self._look()

    def _look(self) -> None:
        ss = ["ss", "--tcp", "--info", "--processes", "--numeric", "--oneline", "--no-header"]
        listed = subprocess.run(ss, capture_output=True, text=True, check=True).stdout
        ours = tree(self._root)
        for line in listed.splitlines():
            if (found := _SOCKET.search(line)) and int(found[3]) in ours:
                self._sent[found[1], found[2], found[3]] = int(found[4])


def of_process(pid: int) -> Usage:
    """Reads what a running process used until now, with its children that ended."""
    return Usage(**_cpu(pid), **_io(pid))


def of_this_process() -> Usage:
    """Reads what this process used until now, without its children."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    secs = {"cpu_secs": used.ru_utime + used.ru_stime, "kernel_secs": used.ru_stime}
    return Usage(**secs, **_io(os.getpid()))


def of_command(module: str, *arguments: str) -> Usage:
    """Runs `python -m module`; gives what it used.

    Raises:
      ChildError: it failed; it has written why to stderr.
    """
    line = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
        with SentBytes(process.pid) as sent:
            # It has ended then, but its counters are there until it is waited for.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        used = of_process(process.pid)
    if process.returncode:
        raise ChildError(f"{module} ended with {process.returncode}: see above")
    return dataclasses.replace(used, sent_bytes=sent.num_bytes)


def _cpu(pid: int) -> dict[str, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    user, kernel, childrens_user, childrens_kernel = (int(each) / _TICKS for each in fields[11:15])
    in_kernel = kernel + childrens_kernel
    return {"cpu_secs": user + childrens_user + in_kernel, "kernel_secs": in_kernel}


def _io(pid: int) -> dict[str, int]:
    counted = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return {"read_bytes": int(counted["rchar"]), "written_bytes": int(counted["wchar"])}
