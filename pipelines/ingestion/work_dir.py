"""The scratch directory of a run, DIR/_work: sorted runs, bad lines, counts and sketches.

Stages pass large data to each other as files here. Only small records go through Beam, so memory
does not grow with the input on any runner. Every file appears by a rename, and its bytes depend on
the input only: a runner may run a stage twice, or on two workers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import xxhash

SPLITS = ("train", "eval")
"""The names of the splits, in the order of their batches in a run's file."""


@dataclass(frozen=True, kw_only=True)
class WorkDir:
    """Names the files in a work directory."""

    path: Path

    def run(self, file_index: int, run_index: int) -> Path:
        """Arrow IPC: sorted rows of one input file, in small batches, one split after the other."""
        return self.path / f"run-{file_index:05d}-{run_index:07d}.arrow"

    def keys(self, run_name: str, split: int) -> Path:
        """NumPy: the keys of a run's rows of one split, ascending."""
        return self.path / f"{run_name}.{SPLITS[split]}.npy"

    def user_run(self, file_index: int, run_index: int) -> Path:
        """Arrow IPC: rows of one input file by user and time, in small batches."""
        return self.path / f"users-{file_index:05d}-{run_index:07d}.arrow"

    def user_keys(self, run_name: str) -> Path:
        """NumPy: the keys of a run of rows by user, ascending."""
        return self.path / f"{run_name}.npy"

    def bad_lines(self, file_index: int) -> Path:
        """JSON lines: the lines of one file that were set aside."""
        return self.path / f"bad-{file_index:05d}.jsonl"

    def counts(self, file_index: int, feature: str, piece: int) -> Path:
        """NumPy: hashes of a feature's ids, ascending, and the count of each."""
        name = xxhash.xxh3_64_hexdigest(feature.encode())
        return self.path / f"counts-{file_index:05d}-{name}-{piece:05d}.npy"

    def texts(self, file_index: int, column: int, piece: int) -> Path:
        """Arrow IPC: ids of one file and column with their texts, ascending, and their counts."""
        return self.path / f"texts-{file_index:05d}-{column:05d}-{piece:05d}.arrow"

    def merged_texts(self, part: int) -> Path:
        """Parquet: the ids of a part with their texts and counts, of all files and columns."""
        return self.path / f"merged-texts-{part:05d}.parquet"

    def sketches(self, split: str, shard_index: int) -> Path:
        """NumPy: the distinct-id sketch of each id column of one shard."""
        return self.path / f"distinct-{split}-{shard_index:05d}.npz"

    def progress(self, name: str) -> Path:
        """Text: the bytes and rows parsed of one file, or the rows written of one shard."""
        return self.path / f"progress-{name}.txt"

    def side_keys(self, join: int) -> Path:
        """NumPy: the keys of a side table, ascending."""
        return self.path / f"side-{join:03d}-keys.npy"

    def side_rows(self, join: int) -> Path:
        """NumPy: the row of each key of a side table."""
        return self.path / f"side-{join:03d}-rows.npy"

    def side_values(self, join: int, column: int) -> Path:
        """Plain values of a column of a side table; of lists, their elements."""
        return self.path / f"side-{join:03d}-{column:05d}.bin"

    def side_starts(self, join: int, column: int) -> Path:
        """Plain int64: where the elements of each row's list begin, and where the last end."""
        return self.path / f"side-{join:03d}-{column:05d}-starts.bin"

    def side_texts(self, join: int, column: int) -> Path:
        """Arrow IPC: ids of a column of a side table with their texts, ascending."""
        return self.path / f"side-{join:03d}-{column:05d}-texts.arrow"

    def pool(self, index: int) -> Path:
        """Arrow IPC: rows of one part of which negatives may be drawn."""
        return self.path / f"pool-{index:05d}.arrow"

    @property
    def joined_pool(self) -> Path:
        """Arrow IPC: the rows of which negatives are drawn."""
        return self.path / "pool.arrow"

    @property
    def notes(self) -> Path:
        """Text: lines for the user of a job that has not stopped; absent if there are none."""
        return self.path / "notes.txt"

    @property
    def failure(self) -> Path:
        """Text: why the job stopped; absent if it did not."""
        return self.path / "failure.txt"
