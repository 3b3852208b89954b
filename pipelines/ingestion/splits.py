"""Decides which rows are held out: by a hash, by time, value or file, or each user's last ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedps.data.dataset import MISSING_ID
from embedps.errors import UsageError
from embedps.features.decode import decode_column
from embedps.features.table_schema import Table
from embedps.splitmix import GOLDEN, mix, seed_hashes


@dataclass(frozen=True, kw_only=True)
class SplitRule:
    """The rule that splits rows into train and eval.

    By default, the seed and the record that a row is read of decide its split: its line, or all
    values of a record of another format. So a row stays in its split when the schema declares
    another column, and equal records are in one split, for any runner, order and division into
    files.

    Attributes:
      seed: seeds the hash.
      fraction: the share of hashes held out; None if time or the file decides.
      keys: the only columns to hash, so that rows of equal keys are in the same split.
      from_ms: hold out the rows of this time (milliseconds since 1970) and later.
      where: hold out the rows where a column has a value: its name and the value as a text.
      last: hold out so many rows of each user that has more, the last ones by time. Rows of equal
        times keep the order of the input, files by name.
      by: the user's column.
    """

    seed: int = 0
    fraction: float | None = 0.1
    keys: tuple[str, ...] = ()
    from_ms: int | None = None
    where: tuple[str, str] | None = None
    last: int = 0
    by: str = ""

    def check(self, table: Table) -> None:
        """Raises UsageError if the table lacks the column that the rule needs."""
        for key in self.keys:
            if table.column(key).role not in ("key", "categorical"):
                raise UsageError(f"--split-key {key} must be a key or categorical column")
        if self.from_ms is not None and table.role("timestamp") is None:
            raise UsageError("--eval-from needs a timestamp column in the schema")
        if self.where is not None:
            self._value(table)
        if self.by and table.column(self.by).role not in ("key", "categorical"):
            raise UsageError(f"--by {self.by} must be a key or categorical column")
        if self.last and table.role("timestamp") is None:
            raise UsageError("--eval-last needs a timestamp column in the schema")
        if self.by and table.histories_by not in ("", self.by):
            raise UsageError(
                f"--by {self.by} must be the column that the schema's histories are by, "
                f"{table.histories_by}"
            )

    @property
    def holds_out(self) -> bool:
        """Whether there is a split of rows that are held out."""
        return self.fraction != 0

    @property
    def needs_records(self) -> bool:
        """Whether the records that rows are read of decide."""
        return bool(self.fraction) and not self.keys

    def held_out(
        self,
        table: Table,
        rows: pa.RecordBatch,
        eval_file: bool,
        records: NDArray[np.uint64] | None = None,
    ) -> NDArray[np.bool_]:
        """Tells which rows are held out.

        Args:
          eval_file: whether their file is an --eval-input.
          records: hashes of the rows' records, if the rule needs them.
        """
        if self.from_ms is not None:
            time = table.role("timestamp")
            name = time.name if time is not None else ""
            return np.asarray(rows.column(name).to_numpy() >= self.from_ms)
        if self.where is not None:
            value = self._value(table)
            return np.asarray(rows.column(self.where[0]).to_numpy() == value)
        if self.last:  # decided where all rows of a user are together
            return np.zeros(rows.num_rows, np.bool_)
        if self.fraction is None:
            return np.full(rows.num_rows, eval_file)
        if not self.fraction:
            return np.zeros(rows.num_rows, np.bool_)
        limit = np.uint64(min(int(self.fraction * 2.0**64), (1 << 64) - 1))
        if self.keys:
            records = hash_rows([rows.column(name) for name in self.keys], self.seed)
        if records is None:
            raise ValueError("this rule needs the hashes of the records")
        return np.asarray(records < limit)

    def without_key(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Tells which rows have none of the values that they are divided by: one hash has them."""
        ids = [rows.column(name) for name in self.keys]
        if not ids or not all(pa.types.is_int64(column.type) for column in ids):
            return np.zeros(rows.num_rows, np.bool_)
        return np.asarray(np.all([c.to_numpy() == MISSING_ID for c in ids], axis=0))

    @property
    def must_hold_rows(self) -> bool:
        """Whether an input without rows to hold out is a mistake of who gave the rule."""
        return self.from_ms is not None or self.where is not None or bool(self.last)

    def _value(self, table: Table) -> int:
        name, text = self.where or ("", "")
        column = table.column(name)
        if column.role not in ("key", "categorical"):
            raise UsageError(f"--eval-where {name}: must be a key or categorical column")
        values, bad = decode_column(column, pa.array([text]), table.missing)
        if bad:
            raise UsageError(f"--eval-where {name}={text}: {bad[0]}")
        return int(values[0].as_py())

    def to_json(self) -> dict[str, Any]:
        """Returns the rule as `_dataset.json` stores it."""
        return {
            "seed": self.seed,
            "eval_fraction": self.fraction,
            "split_key": [*self.keys] if len(self.keys) > 1 else "".join(self.keys),
            **({"split_by": "record"} if self.needs_records else {}),
            "eval_from_ms": self.from_ms,
            **({"eval_where": [*self.where]} if self.where is not None else {}),
            **({"eval_last": self.last, "by": self.by} if self.last else {}),
        }


def hash_rows(columns: list[pa.Array], seed: int) -> NDArray[np.uint64]:
    """Hashes the values of each row."""
    h = seed_hashes(seed, len(columns[0]))
    for column in columns:
        h *= np.uint64(GOLDEN)
        h ^= h >> np.uint64(32)
        h ^= _bits(column)
    return mix(h)


def _bits(column: pa.Array) -> NDArray[np.uint64]:
    if pa.types.is_list(column.type):
        return _hash_lists(column)
    values = column.to_numpy()
    wide = values if values.itemsize == 8 else values.astype(np.float64)
    return np.asarray(wide.view(np.uint64))


def _hash_lists(column: pa.Array) -> NDArray[np.uint64]:
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    offsets = offsets - offsets[0]
    lengths = np.diff(offsets)
    ids = _bits(column.flatten())
    place = np.arange(len(ids)) - np.repeat(offsets[:-1], lengths)
    h = mix(ids + np.uint64(GOLDEN) * (place.astype(np.uint64) + np.uint64(1)))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(h)])
    return np.asarray(sums[offsets[1:]] - sums[offsets[:-1]] + lengths.astype(np.uint64))
