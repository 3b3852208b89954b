"""Builders of Criteo lines and logs, and of datasets made of them."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from embedps.dataset import Dataset
from pipelines.criteo_format import NUM_IDS, NUM_INTEGERS


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
        data = zstandard.compress(data)
    path.write_bytes(data)
    return path


def read_split(dataset: Dataset, split: str) -> pa.Table:
    """All rows of a split, in the order of its shards."""
    return pa.concat_tables([pq.read_table(path) for path in dataset.paths(split)])
