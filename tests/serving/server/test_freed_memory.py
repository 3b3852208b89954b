"""Memory of large messages is used again without the system."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from embedps.serving.server import freed_memory
if sys.argv[1] == "kept" and not freed_memory.keep():
    sys.exit("no glibc")
def use():
    blocks = [bytearray(b"x" * (20 << 20)) for _ in range(2)]
    while blocks:
        blocks.pop()
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_what_is_freed_is_kept() -> None:
    faults = {}
    for how in ("kept", "usual"):
        command = [sys.executable, "-c", PROGRAM, how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if "no glibc" in done.stderr:
            pytest.skip("malloc is not glibc's")
        faults[how] = int(done.stdout)
    # A block of 20 MiB has 5,120 pages.
    assert faults["kept"] < 1000 < 5000 < faults["usual"]
