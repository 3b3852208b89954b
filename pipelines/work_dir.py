"""The scratch directory of a run, DIR/_work: parsed blocks, bad lines and sketches of each file.

Big things pass between the pipeline's steps as files here, named by what they hold; only small
records go through Beam, so memory does not grow with the input on any runner. Every file comes into
being by a rename and its bytes depend on the input only: a step that a runner tries twice, or on
two workers at once, does no harm.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SPLITS = ("train", "eval")
"""The splits' names, in the order of their batches in a block's file."""


@dataclass(frozen=True, kw_only=True)
class BlockRecord:
    """One parsed block: its file in the work directory, rows and positives of each split."""

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
    lines_bad: int
    blocks: tuple[BlockRecord, ...]
    integers_missing: tuple[int, ...]
    ids_missing: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class WorkDir:
    """Names of the files in a work directory."""

    path: Path

    def block(self, file_index: int, block_index: int) -> Path:
        """Arrow IPC: the rows of one block, a batch for each split."""
        return self.path / f"block-{file_index:05d}-{block_index:07d}.arrow"

    def bad_lines(self, file_index: int) -> Path:
        """JSON lines: the lines of one file that were set aside."""
        return self.path / f"bad-{file_index:05d}.jsonl"

    def sketches(self, file_index: int) -> Path:
        """NumPy: the distinct-id sketch of each id column of one file."""
        return self.path / f"distinct-{file_index:05d}.npz"

    def progress(self, file_index: int) -> Path:
        """Text: how many bytes of one file are parsed."""
        return self.path / f"progress-{file_index:05d}.txt"


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
