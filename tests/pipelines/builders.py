"""Builders of Criteo lines and logs, of datasets made of them, and of parsed rows."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import zstandard

from embedps.features.table_columns import LIST_TYPE
from embedps.features.table_schema import Table
from embedps.pipelines.criteo_format import NUM_IDS, NUM_INTEGERS


def make_line(
    label: str = "0",
    integers: Sequence[str] = tuple(map(str, range(NUM_INTEGERS))),
    ids: Sequence[str] = tuple(map("{:08x}".format, range(NUM_IDS))),
) -> bytes:
    """A line without its line break; good as it stands."""
    return "\t".join([label, *integers, *ids]).encode()


def make_lines(num_lines: int, seed: int = 0) -> list[bytes]:
    """Good lines, all different, some fields missing."""
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(num_lines):
        integers = [str(value) if value < 90 else "" for value in rng.integers(-2, 100, 12)]
        ids = [f"{value:08x}" if value > 9 else "" for value in rng.integers(0, 200, NUM_IDS)]
        lines.append(make_line(str(rng.integers(0, 2)), [str(i), *integers], ids))
    return lines


def write_log(path: Path, lines: Sequence[bytes]) -> Path:
    """Writes lines to a file, packed as it is named."""
    data = b"".join(line + b"\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        data = gzip.compress(data, 1, mtime=0)
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor(write_checksum=True).compress(data)  # as the command does
    path.write_bytes(data)
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder, by their paths in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def make_table(timed: bool) -> Table:
    """A table of every kind that needs no statistics."""
    columns = [
        {"name": "label", "as": "label"},
        {"name": "id", "as": "categorical", "type": "integer"},
        {"name": "tags", "as": "list", "type": "integer"},
        {"name": "weight", "as": "weight"},
    ]
    columns += [{"name": "time", "as": "timestamp", "type": "milliseconds"}] if timed else []
    return Table.parse({"column": columns})


def make_rows(table: Table, first: int, times: list[int]) -> pa.RecordBatch:
    """Rows first, first + 1, … by id; every third is a click; a row has `id % 3` tags."""
    index = np.arange(first, first + len(times))
    columns = [
        pa.array((index % 3 == 0).astype(np.float32)),
        pa.array(index),
        pa.array([[i] * (i % 3) for i in index.tolist()], LIST_TYPE),
        pa.array(index.astype(np.float32)),
        pa.array(times, pa.int64()),
    ]
    schema = table.row_schema
    return pa.record_batch(columns[: len(schema)], schema=schema)
