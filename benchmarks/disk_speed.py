"""Measures a disk: random reads of 4 KiB past the cache of the system."""

from __future__ import annotations

import mmap
import os
import random
import tempfile
import threading
import time
from pathlib import Path

_BLOCK = 4096
_FILE_BYTES = 1 << 30
_WRITE_BYTES = 4 << 20


def reads_per_sec(directory: Path, threads: int, secs: float = 2.0) -> float:
    """Reads blocks of a file of 1 GiB, which it makes and removes, from some threads at once."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        written = mmap.mmap(-1, _WRITE_BYTES)  # as O_DIRECT needs whole pages
        written.write(os.urandom(_WRITE_BYTES))
        fd = os.open(file.name, os.O_RDWR | os.O_DIRECT)
        try:
            for offset in range(0, _FILE_BYTES, _WRITE_BYTES):
                os.pwrite(fd, written, offset)
            return _read(fd, threads, secs)
        finally:
            os.close(fd)


def _read(fd: int, threads: int, secs: float) -> float:
    counts = [0] * threads
    end = time.perf_counter() + secs

    def work(number: int) -> None:
        block, rng = mmap.mmap(-1, _BLOCK), random.Random(number)
        while time.perf_counter() < end:
            os.preadv(fd, [block], rng.randrange(_FILE_BYTES // _BLOCK) * _BLOCK)
            counts[number] += 1

    readers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return sum(counts) / secs
