"""A server takes its share of the machine's cores, and keeps memory that it freed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from embedps.cluster.local_processes import LocalProcesses

_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_PROGRAM = """
import ctypes, resource, sys
from embedps.server import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def step():
    blocks = [libc.malloc(48 << 20) for _ in range(2)]
    for block in blocks:
        libc.memset(block, 1, 48 << 20)
        libc.free(block)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_freed_memory_is_used_again_without_new_pages():
    assert faults("keep") < 100
    assert faults("as it is") > 100  # so that the line above says something


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("count", "threads"), [(1, len(os.sched_getaffinity(0))), (64, 1)])
def test_local_servers_share_the_cores(count, threads, tmp_path, monkeypatch):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr(subprocess, "Popen", _Recorded)
    _Recorded.environments.clear()
    LocalProcesses(num_ps=count, num_workers=count, log_dir=Path(tmp_path), grace_secs=1.0).close()
    assert len(_Recorded.environments) == 2 * count
    assert {e["TF_NUM_INTRAOP_THREADS"] for e in _Recorded.environments} == {str(threads)}


_HUGE = """
import ctypes, re
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.memset(libc.malloc(48 << 20), 1, 48 << 20)
smaps = open("/proc/self/smaps_rollup").read()
print(re.search(r"AnonHugePages: +([0-9]+) kB", smaps)[1])
"""


@pytest.mark.skipif(
    "[madvise]" not in (_THP.read_text() if _THP.exists() else ""),
    reason="elsewhere huge pages are for all or for none",
)
def test_local_servers_tensors_are_in_huge_pages(tmp_path, monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", _Recorded)
        _Recorded.environments.clear()
        LocalProcesses(num_ps=1, num_workers=1, log_dir=tmp_path, grace_secs=1.0).close()

    def huge_kib(environment: dict[str, str] | None) -> int:
        command = [sys.executable, "-c", _HUGE]
        return int(
            subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True).stdout
        )

    for environment in _Recorded.environments:
        assert huge_kib(environment) > 40 << 10
    assert huge_kib(None) < 8 << 10  # so that the line above says something


class _Recorded:
    """A process that is not started."""

    environments: ClassVar[list[dict[str, str]]] = []
    pid = 0

    def __init__(self, *_: object, env: dict[str, str], **__: object) -> None:
        self.environments.append(env)

    def kill(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def poll(self) -> int:
        return 0

    def send_signal(self, number: int) -> None:
        pass

    def terminate(self) -> None:
        pass
