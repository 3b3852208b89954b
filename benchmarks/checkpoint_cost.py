"""Times writing and loading saves: `python -m benchmarks.checkpoint_cost`.

Bases and deltas are written and loaded, by rows in the table and rows touched.

The baseline of a write is a plain copy: it writes the same bytes from memory, 1 MB at a time, to
the same files in the same directories. It is as safe against a power cut, because it syncs each
file and each directory with a new entry, but it does not rename from a temporary name. The baseline
of a load is a plain read. The files' pages are dropped from memory before both.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table
from embedps.config_fields import option
from embedps.storage import file_io
from embedps.tables import FeatureSpec, RowwiseAdagrad, TableSpec
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.row_files import ShardFile, StoredFile

_CHUNK_BYTES = 1 << 20
_FILL_ROWS = 200_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The tables, and what is touched between two saves."""

    rows: tuple[int, ...] = option((10_000, 100_000, 1_000_000), "of each table", least=1)
    touched: tuple[float, ...] = option((0.001, 0.01, 0.1), "shares of rows", above=0, most=1)
    touched_rows: int = option(5_000, "also touch this many rows of every table", least=1)
    dim: int = option(16, "of the rows", least=1)
    shards: int = option(2, "of the table", least=1)
    repeats: int = option(3, "of each save", least=1)
    folder: str | None = option(None, "a folder on the disk to measure", metavar=DIR)


def measure(config: Config, run: Run) -> Content:
    """Measures each table size."""
    with tempfile.TemporaryDirectory(dir=config.folder) as folder:
        return {"results": [_TableCost(config, n, Path(folder)).all() for n in config.rows]}


class _TableCost:
    """Measures the saves and loads of one table on its shards."""

    def __init__(self, config: Config, rows: int, folder: Path) -> None:
        self._config = config
        self._rows = rows
        self._folder = folder
        self._collection = self._make("live")
        self._rng = np.random.default_rng(1)
        self._step = 0
        self._saves = 0
        self._since: dict[tuple[str, int], int] = {}

    def all(self) -> dict[str, Any]:
        """Measures writing and loading the base and the deltas."""
        self._touch(np.arange(self._rows))
        base = self._measure("base", self._rows, lambda: None)
        deltas = []
        counts = [max(1, int(share * self._rows)) for share in self._config.touched]
        for count in sorted({*counts, self._config.touched_rows}):
            if count <= self._rows:
                ids = self._rng.choice(self._rows, count, replace=False)
                deltas.append(self._measure("delta", count, functools.partial(self._touch, ids)))
        self._collection.drop()
        found = {"rows": self._rows, "base": base, "deltas": deltas}
        print(f"{self._rows:,} rows: base {base['write_secs']} s", flush=True)
        return found

    def _measure(self, kind: str, touched: int, before: Callable[[], None]) -> dict[str, Any]:
        writes, copies, loads, reads, memory = [], [], [], [], []
        size = 0
        for _ in range(self._config.repeats):
            before()
            secs, files = self._write(kind)
            writes.append(secs)
            size = sum(f.bytes for f in files)
            paths = [Path(f.path) for f in files]
            copies.append(_copy(paths, self._folder))
            memory.append(_memcpy(paths))
            reads.append(_timed(functools.partial(_read, paths), _dropped(paths)))
            loads.append(self._load(files))
            for path in paths:
                path.unlink()
        copy_rate, read_rate = (size / statistics.median(x) for x in (copies, reads))
        memcpy_rate = size / statistics.median(memory)
        write_rate, load_rate = (size / statistics.median(x) for x in (writes, loads))
        return {
            "touched_rows": touched,
            "bytes": size,
            "bytes_per_row": round(size / touched, 2),
            "write_secs": round(statistics.median(writes), 4),
            "load_secs": round(statistics.median(loads), 4),
            "write_mb_per_sec": round(write_rate / 1e6, 1),
            "copy_mb_per_sec": round(copy_rate / 1e6, 1),
            "load_mb_per_sec": round(load_rate / 1e6, 1),
            "read_mb_per_sec": round(read_rate / 1e6, 1),
            "memcpy_mb_per_sec": round(memcpy_rate / 1e6, 1),
            "write_ratio": round(write_rate / min(copy_rate, memcpy_rate), 3),
            "load_ratio": round(load_rate / min(copy_rate, read_rate, memcpy_rate), 3),
            "load_ratio_to_read": round(load_rate / min(read_rate, memcpy_rate), 3),
        }

    def _write(self, kind: str) -> tuple[float, list[ShardFile]]:
        self._saves += 1
        folder = str(self._folder / f"{kind}-{self._saves}")
        files: list[ShardFile] = []

        def write() -> None:
            files.extend(
                self._collection.files.write(
                    "base" if kind == "base" else "delta", folder, since=self._since
                )
            )

        secs = _timed(write)
        self._since = {(f.group, f.shard): f.cut for f in files}
        return secs, files

    def _load(self, files: Sequence[ShardFile]) -> float:
        """Times a load with checksums into empty tables.

        An empty load comes first, so that TensorFlow's one-time setup is not timed.
        """
        other = self._make("loaded")
        other.files.load({})
        groups: dict[str, list[StoredFile]] = {}
        for f in files:
            groups.setdefault(f.group, []).append(f.stored)
        secs = _timed(lambda: other.files.load(groups), _dropped([Path(f.path) for f in files]))
        other.drop()
        return secs

    def _make(self, name: str) -> EmbeddingCollection:
        return EmbeddingCollection(
            [TableSpec(name="t", embedding_dim=self._config.dim, optimizer=RowwiseAdagrad())],
            [FeatureSpec(name="t", table="t")],
            devices=["/device:CPU:0"] * self._config.shards,
            container=f"benchmark-{name}-{self._rows}",
        )

    def _touch(self, ids: npt.NDArray[np.int64]) -> None:
        self._step += 1
        for first in range(0, len(ids), _FILL_ROWS):
            batch = {"t": tf.constant(ids[first : first + _FILL_ROWS])}
            looked = self._collection.lookup(batch, insert=True)
            self._collection.update(
                looked,
                [[tf.ones_like(r) for r in rows] for rows in looked.rows],
                learning_rate=tf.constant(0.1),
                step=tf.constant(self._step, tf.int64),
            )


def _timed(work: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> float:
    prepare()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _copy(sources: Sequence[Path], root: Path) -> float:
    """Times writing the contents of SAVE/GROUP/FILE from memory to new files, one by one."""
    contents = {path.relative_to(path.parents[1]): path.read_bytes() for path in sources}
    target = root / "copy"

    def write() -> None:
        target.mkdir()
        folders = {target / name.parent for name in contents}
        for folder in folders:
            folder.mkdir()
        for name, data in contents.items():
            with open(target / name, "wb", buffering=0) as file:
                view = memoryview(data)
                for first in range(0, len(view), _CHUNK_BYTES):
                    file.write(view[first : first + _CHUNK_BYTES])
                os.fsync(file.fileno())
        for folder in (*folders, target, root):
            file_io.store_of(folder).sync_directory(folder)

    secs = _timed(write)
    file_io.store_of(target).remove_directory(target)
    return secs


def _memcpy(paths: Sequence[Path]) -> float:
    contents = [np.fromfile(path, np.uint8) for path in paths]
    others = [np.ones_like(content) for content in contents]

    def copy() -> None:
        for other, content in zip(others, contents, strict=True):
            np.copyto(other, content)

    return _timed(copy)


def _read(paths: Sequence[Path]) -> None:
    buffer = bytearray(_CHUNK_BYTES)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _dropped(paths: Sequence[Path]) -> Callable[[], None]:
    """Returns a function that drops the files' pages from memory, so that a read uses the disk."""

    def drop() -> None:
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    return drop


def layout(content: Content) -> list[Part]:
    """Lays out each save beside a plain copy, and each load beside the disk."""
    rows = [
        [
            f"{size['rows']:,}",
            "all" if save is size["base"] else f"{save['touched_rows']:,}",
            f"{save['bytes'] / 1e6:,.2f}",
            f"{save['write_secs'] * 1e3:,.1f}",
            f"{save['write_ratio']:.2f}",
            f"{save['load_secs'] * 1e3:,.1f}",
            f"{save['load_ratio']:.2f}",
        ]
        for size in content["results"]
        for save in (size["base"], *size["deltas"])
    ]
    heads = ["rows", "rows written", "MB", "write, ms", "rate against a copy"]
    return [Table(heads=[*heads, "load, ms", "rate against the disk"], rows=rows)]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
