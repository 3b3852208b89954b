"""The items of a dataset: each once, with the features that its rows give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embedps.data.arrow_errors import naming
from embedps.data.dataset import RARE_ID, Dataset
from embedps.data.distinct_ids import sorted_distinct
from embedps.errors import UsageError


class Corpus:
    """The items of a dataset, in ascending order of their ids.

    Attributes:
      ids: int64 [items].
      columns: of the items, in that order: the ids' column, then their features.
    """

    def __init__(self, columns: pa.Table) -> None:
        self.columns = columns
        self.ids = columns.column(0).to_numpy()

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        column: str,
        *,
        features: Sequence[str] = (),
        lists: Sequence[str] = (),
    ) -> Corpus:
        """Collects the items of all splits. An item has the features of its first row.

        What all rare items became (`min_count`) is none: nobody could be shown it.

        Args:
          column: of an item's id per row.
          features: further columns of the item.
          lists: columns of lists of such ids. An item that only lists name must have no features.

        Raises:
          UsageError: the dataset has no such column, or no item, a row without one, or an item
            without features.
        """
        known = {f.name: f.ragged for f in dataset.categorical} | dict.fromkeys(dataset.keys, False)
        numbers = dict.fromkeys((f.name for f in dataset.numeric), False)
        for name, ragged in ((column, False), *((each, True) for each in lists)):
            if known.get(name) is not ragged:
                kind = "lists of ids" if ragged else "ids"
                raise UsageError(
                    f"{name!r} must be a column of {kind} of {dataset.directory}: there are "
                    f"{', '.join(n for n, r in known.items() if r is ragged) or 'none'}"
                )
        if absent := [name for name in features if name not in {**known, **numbers}]:
            raise UsageError(f"{dataset.directory} has no column {absent[0]!r} of items")
        found, listed, num_missing = [], [np.zeros(0, np.int64)], 0
        names = [*dict.fromkeys([column, *features, *lists])]
        for path in (path for split in dataset.splits for path in dataset.paths(split)):
            with naming(path):
                table = pq.read_table(path, columns=names)
            ids = table.column(column).to_numpy()
            num_missing += int(np.count_nonzero(ids == dataset.missing_id))
            _, first = np.unique(ids, return_index=True)
            found.append(table.select([column, *features]).take(first))
            listed += [
                sorted_distinct(pc.list_flatten(table.column(name)).to_numpy()) for name in lists
            ]
        if num_missing:
            raise UsageError(
                f"each row of {dataset.directory} must have an item in {column!r}, but "
                f"{num_missing:,} have none: leave them out of its input"
            )
        table = pa.concat_tables(found)
        ids, first = np.unique(table.column(column).to_numpy(), return_index=True)
        is_item = ids != RARE_ID
        ids, table = ids[is_item], table.take(first[is_item])
        only_listed = sorted_distinct(np.concatenate(listed))
        only_listed = only_listed[~np.isin(only_listed, np.append(ids, RARE_ID), kind="sort")]
        if len(only_listed) and features:
            raise UsageError(
                f"item {only_listed[0]} of {dataset.directory} is in a list, but no row has it in "
                f"{column!r}, so its {', '.join(features)} are not known"
            )
        if len(only_listed):
            table = pa.table({column: sorted_distinct(np.append(ids, only_listed))})
        if not table.num_rows:
            raise UsageError(f"{dataset.directory} has no item in column {column!r}")
        return cls(table.combine_chunks())

    def batches(self, batch_rows: int = 4096) -> Any:
        """Gives the items as a tf.data.Dataset of columns, as a model takes them."""
        import tensorflow as tf

        columns: dict[str, Any] = {}
        for name in self.columns.column_names:
            values = self.columns.column(name).combine_chunks()
            if pa.types.is_list(values.type):
                lengths = pc.list_value_length(values).to_numpy()
                flat = pc.list_flatten(values).to_numpy()
                columns[name] = tf.RaggedTensor.from_row_lengths(flat, lengths)
            else:
                columns[name] = values.to_numpy()
        return tf.data.Dataset.from_tensor_slices(columns).batch(batch_rows)
