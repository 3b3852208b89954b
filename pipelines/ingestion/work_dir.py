"""The scratch directory of a run, DIR/_work: sorted runs, bad lines, counts and sketches.

Big things pass between the pipeline's steps as files here, named by what they hold; only small
records go through Beam, so memory does not grow with the input on any runner. Every file comes into
being by a rename and its bytes depend on the input only: a step that a runner tries twice, or on
two workers at once, does no harm.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from pipelines.ingestion.column_statistics import Moments

SPLITS = ("train", "eval")
"""The splits' names, in the order of their batches in a run's file."""


@dataclass(frozen=True, kw_only=True)
class SortedRunRecord:
    """One sorted run: its file in the work directory, rows and positives of each split."""

    file_name: str
    rows: tuple[int, ...]
    positives: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One input file after parsing; `name` is how reports call it."""

    index: int
    name: str
    bytes: int
    xxh3_64: str
    lines: int
    """Lines that should be rows; a header is none."""
    lines_bad: int
    runs: tuple[SortedRunRecord, ...]
    damage: str = ""
    """Why rows of it are lost, nobody knows how many: it is cut, damaged or gone."""
    moments: Mapping[str, Moments] = field(default_factory=dict)
    num_count_pieces: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WorkDir:
    """Names of the files in a work directory."""

    path: Path

    def run(self, file_index: int, run_index: int) -> Path:
        """Arrow IPC: sorted rows of one file, in small batches, split after split."""
        return self.path / f"run-{file_index:05d}-{run_index:07d}.arrow"

    def keys(self, run_name: str, split: int) -> Path:
        """NumPy: the keys of a run's rows of one split, ascending."""
        return self.path / f"{run_name}.{SPLITS[split]}.npy"

    def bad_lines(self, file_index: int) -> Path:
        """JSON lines: the lines of one file that were set aside."""
        return self.path / f"bad-{file_index:05d}.jsonl"

    def counts(self, file_index: int, feature: str, piece: int) -> Path:
        """NumPy: hashes of a feature's ids, ascending, and how often each came."""
        name = xxhash.xxh3_64_hexdigest(feature.encode())
        return self.path / f"counts-{file_index:05d}-{name}-{piece:05d}.npy"

    def sketches(self, split: str, shard_index: int) -> Path:
        """NumPy: the distinct-id sketch of each id column of one shard."""
        return self.path / f"distinct-{split}-{shard_index:05d}.npz"

    def progress(self, name: str) -> Path:
        """Text: how many bytes and rows of one file are parsed, or rows of one shard written."""
        return self.path / f"progress-{name}.txt"

    @property
    def failure(self) -> Path:
        """Text: why the job was given up, where it was."""
        return self.path / "failure.txt"


@contextmanager
def replacing(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Gives a temporary name beside `path`; renames it at the end, or removes it on an error."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        if sync:
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
