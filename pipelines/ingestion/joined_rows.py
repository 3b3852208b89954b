"""Joins rows with side tables: by their keys, the rows get the columns of the tables' rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedps.errors import DatasetError
from embedps.features.table_columns import Column
from embedps.features.table_schema import Join, Table

from .side_texts import MappedTexts
from .work_dir import WorkDir

_MOST_ELEMENTS = (1 << 31) - 1


class RowJoiner:
    """Joins the rows of one file.

    Attributes:
      unmatched: by join, how many rows have no row in its side table.
    """

    def __init__(self, table: Table, work: WorkDir) -> None:
        """Opens the side tables that `write_side_tables` wrote; `table` has their columns too."""
        self._schema = table.row_schema
        self._sides = [
            _MappedTable(work, place, join, table) for place, join in enumerate(table.joins)
        ]
        self.unmatched = [0] * len(self._sides)

    def join(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Adds the joined columns: of rows without a key or a row there, missing values."""
        if not self._sides:
            return rows
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for place, side in enumerate(self._sides):
            found, unmatched = side.find(columns[side.on])
            self.unmatched[place] += unmatched
            columns |= found
        return pa.record_batch([columns[f.name] for f in self._schema], schema=self._schema)


class _MappedTable:
    """A side table in the work directory, mapped into memory."""

    def __init__(self, work: WorkDir, place: int, join: Join, table: Table) -> None:
        self.on = join.on
        self._keys = np.load(work.side_keys(place), mmap_mode="r")
        self._rows = np.load(work.side_rows(place), mmap_mode="r")
        self._columns: list[tuple[Column, _Values]] = []
        for at, column in enumerate(join.columns):
            on_text = table.column(column.name).on_text
            texts = None if on_text is None else (MappedTexts(work, place, at), on_text)
            starts = work.side_starts(place, at) if pa.types.is_list(column.row_type) else None
            self._columns.append(
                (column, _Values(column, work.side_values(place, at), starts, texts))
            )

    def find(self, keys: pa.Array) -> tuple[dict[str, pa.Array], int]:
        """Returns the columns of rows of these keys, and how many have none."""
        # Few keys are sought, and in order: that is faster where the table is large.
        wanted, row_of = np.unique(keys.to_numpy(), return_inverse=True)
        places = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        found = self._keys[places] == wanted
        rows = np.where(found, self._rows[places], len(self._keys))[row_of]
        columns = {column.name: values.take(rows) for column, values in self._columns}
        return columns, int(np.count_nonzero(~found[row_of]))


class _Values:
    """The values of a column, mapped into memory."""

    def __init__(
        self,
        column: Column,
        path: Path,
        starts: Path | None,
        texts: tuple[MappedTexts, Callable[[str, int], None]] | None,
    ) -> None:
        self._name, self._type, self._texts = column.name, column.row_type, texts
        self._element = self._type.value_type if starts is not None else self._type
        self._values = _mapped(path, self._element.to_pandas_dtype())
        self._starts = None if starts is None else _mapped(starts, np.int64)

    def take(self, rows: NDArray[np.int64]) -> pa.Array:
        """Returns the values of rows."""
        if self._starts is None:
            array = values = self._array(rows)
        else:
            starts = self._starts[rows]
            lengths = self._starts[rows + 1] - starts
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            if offsets[-1] > _MOST_ELEMENTS:
                raise DatasetError(
                    f"column {self._name!r}: the joined lists of {len(rows):,} rows must have at "
                    f"most {_MOST_ELEMENTS:,} elements, they have {offsets[-1]:,}: cut the lists "
                    "of the side table"
                )
            values = self._array(np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths))
            array = pa.ListArray.from_arrays(
                pa.array(offsets.astype(np.int32)), values, type=self._type
            )
        if self._texts is not None:
            texts, on_text = self._texts
            texts.tell(values, on_text)
        return array

    def _array(self, places: NDArray[np.int64]) -> pa.Array:
        return pa.array(np.asarray(self._values[places]), self._element, from_pandas=False)


def _mapped(path: Path, dtype: Any) -> NDArray[Any]:
    """Maps a file of values; an empty file cannot be mapped."""
    if not path.stat().st_size:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r")
