"""Builders of Criteo lines and logs."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np

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
    """Writes lines to a file, gzip when it is named so."""
    data = b"".join(line + b"\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 1, mtime=0) if path.suffix == ".gz" else data)
    return path
