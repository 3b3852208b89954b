"""Stores of rows larger than memory: ours, RocksDB, and a file under the kernel's paging.

Each has the rows 0 to n - 1, of zeros at first, and a limit of memory.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

DIM = 16
RATE = 0.5
_THREADS = 8  # that read at once, as in ours
_PART = 65536
_GROUP = "embedps-benchmark-"
_CGROUPS = Path("/sys/fs/cgroup/memory")


class Rows(Protocol):
    """Rows on disk and in memory."""

    def fill(self, rows: int) -> None:
        """Makes the rows."""

    def step(self, keys: Keys) -> Floats:
        """Reads distinct rows, float32 [keys, DIM], then takes RATE from each of their floats."""


class OurRows:
    """A table of ours with a tier."""

    def __init__(self, directory: str, max_bytes: int) -> None:
        import tensorflow as tf

        from embedps.tables import FeatureSpec, Initializer, TableSpec
        from embedps.tables.collection import EmbeddingCollection
        from embedps.tables.optimizers import SGD
        from embedps.tables.tiered import Tiered

        table = TableSpec(
            name="rows", embedding_dim=DIM, optimizer=SGD(), initializer=Initializer()
        )
        self._tables = EmbeddingCollection(
            [table],
            [FeatureSpec(name="ids", table=table)],
            devices=["/device:CPU:0"],
            container=f"benchmark-{os.getpid()}-{id(self)}",
            memory=Tiered(max_memory_bytes=max_bytes, directory=directory),
        )
        self._tf, self._steps = tf, 0

    def fill(self, rows: int) -> None:
        for first in range(0, rows, _PART):
            ids = self._tf.range(first, min(first + _PART, rows), dtype=self._tf.int64)
            self._tables.lookup({"ids": ids}, insert=True)

    def step(self, keys: Keys) -> Floats:
        tf, self._steps = self._tf, self._steps + 1
        found = self._tables.lookup({"ids": tf.constant(keys)}, insert=True)
        self._tables.update(
            found,
            [[tf.ones_like(shard) for shard in shards] for shards in found.rows],
            learning_rate=tf.constant(RATE),
            step=tf.constant(self._steps, tf.int64),
        )
        return np.asarray(self._tables.combine(found)["ids"])


class RocksRows:
    """A RocksDB: its cache of blocks has the memory. There is no log, as ours has none."""

    def __init__(self, directory: str, max_bytes: int) -> None:
        import rocksdict

        buffers = max_bytes // 8
        blocks = rocksdict.BlockBasedOptions()
        blocks.set_block_cache(rocksdict.Cache(max_bytes - buffers))
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        blocks.set_bloom_filter(10, False)
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(blocks)
        options.set_write_buffer_size(buffers // 2)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_use_direct_reads(True)
        options.set_use_direct_io_for_flush_and_compaction(True)
        options.set_max_background_jobs(2)
        self._rows = rocksdict.Rdict(f"{directory}/rocksdb-{os.getpid()}", options)
        written = rocksdict.WriteOptions()
        written.disable_wal = True
        self._rows.set_write_options(written)
        self._new_batch = rocksdict.WriteBatch
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS)

    def fill(self, rows: int) -> None:
        for first in range(0, rows, _PART):
            count = min(_PART, rows - first)
            self._write(np.arange(first, first + count), np.zeros([count, DIM], np.float32))
        self._rows.flush()

    def step(self, keys: Keys) -> Floats:
        names = _names(keys)
        parts = [names[i::_THREADS] for i in range(_THREADS)]
        found = np.empty([len(keys), DIM], np.float32)
        for i, values in enumerate(self._pool.map(self._rows.get, parts)):
            found[i::_THREADS] = np.frombuffer(b"".join(values), np.float32).reshape(-1, DIM)
        self._write(keys, found - RATE)
        return found

    def _write(self, keys: Keys, rows: Floats) -> None:
        batch = self._new_batch(raw_mode=True)
        data = rows.tobytes()
        for i, name in enumerate(_names(keys)):
            batch.put(name, data[i * 4 * DIM : (i + 1) * 4 * DIM])
        self._rows.write(batch)


class MappedRows:
    """A file that is mapped: a row's number is its place, so there is no index.

    The memory limit is that of a control group of this process alone.
    """

    def __init__(self, directory: str, max_bytes: int) -> None:
        self._path = f"{directory}/rows-{os.getpid()}"
        group = _make_group(str(os.getpid()))
        (group / "memory.limit_in_bytes").write_text(str(max_bytes))
        # What the process takes from now on; what it has counts for the group before.
        (group / "cgroup.procs").write_text(str(os.getpid()))
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS)

    def fill(self, rows: int) -> None:
        import mmap

        with open(self._path, "wb") as file:
            for first in range(0, rows, _PART):
                file.write(bytes(min(_PART, rows - first) * 4 * DIM))
        self._rows: Floats = np.memmap(self._path, np.float32, "r+", shape=(rows, DIM))
        self._rows._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]

    def step(self, keys: Keys) -> Floats:
        found = np.empty([len(keys), DIM], np.float32)

        def work(part: int) -> None:
            at = slice(part, None, _THREADS)
            found[at] = self._rows[keys[at]]
            self._rows[keys[at]] = found[at] - RATE

        list(self._pool.map(work, range(_THREADS)))
        return found


STORES: dict[str, Callable[[str, int], Rows]] = {
    "ours": OurRows,
    "RocksDB": RocksRows,
    "mapped file": MappedRows,
}


def why_not(store: str) -> str | None:
    """Says why a store cannot run here; None if it can."""
    if store == "RocksDB" and importlib.util.find_spec("rocksdict") is None:
        return "needs the package rocksdict"
    if store == "mapped file":
        try:
            _make_group("check")
        except OSError as error:
            return f"needs a control group that limits memory: {error}"
        remove_groups()
    return None


def remove_groups() -> None:
    """Removes the control groups of stores whose processes have ended, or end now."""
    for group in _own_group().glob(f"{_GROUP}*"):
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


def _names(keys: Keys) -> list[bytes]:
    data = keys.astype(">i8").tobytes()
    return [data[i : i + 8] for i in range(0, len(data), 8)]


def _own_group() -> Path:
    """Finds the memory control group (version 1) of this process."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _CGROUPS / path.lstrip("/")
    raise FileNotFoundError(f"{_CGROUPS} has no group of this process")


def _make_group(name: str) -> Path:
    """Makes a group in that of this process, whose limits still hold; see `remove_groups`."""
    group = _own_group() / f"{_GROUP}{name}"
    group.mkdir(exist_ok=True)
    (group / "memory.limit_in_bytes").read_text()
    return group
