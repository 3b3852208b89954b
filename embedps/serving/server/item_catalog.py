"""The items that a retrieval model ranks, with the columns that their tower takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embedps.layers.candidates import Candidates
from embedps.serving.server.item_index import NO_ITEM, Ids
from embedps.serving.unknown_queries import own_table
from embedps.tables.specs import FeatureSpec

BATCH_ROWS = 8192


class ItemCatalog:
    """Items by key: their identifier if it is an int64, else their place among the candidates.

    Attributes:
      declared: the keys of the model's candidates, in their order.
      table: of the rows by identifier; None if the tower does not look the identifier up.
      has_ids: whether keys are the identifiers.
      takes_any: whether the tower needs an item's identifier alone, so that it encodes any.
    """

    def __init__(self, candidates: Candidates, features: Sequence[FeatureSpec]) -> None:
        """Reads the candidates' columns.

        Args:
          candidates: what the model ranks.
        """
        name = candidates.identifier
        self._identifier = name
        self._features = [f for f in features if f.name in candidates.columns]
        self._columns = _read(candidates)
        self._names: tf.Tensor | None = None  # identifiers that are no int64
        self.has_ids = name is not None and self._columns[name].dtype == tf.int64
        if name is not None and self.has_ids:
            self.declared: Ids = self._columns[name].numpy()
        else:
            self._names = None if name is None else self._columns[name]
            rows = next(iter(self._columns.values())).shape[0]
            self.declared = np.arange(rows, dtype=np.int64)
        self.table = own_table(candidates, features)
        self.takes_any = self.has_ids and candidates.columns == (name,)
        self._order = np.argsort(self.declared, kind="stable")
        self._sorted = self.declared[self._order]

    @property
    def tables(self) -> frozenset[str]:
        """The tables whose rows the tower takes."""
        return frozenset(f.table_name for f in self._features)

    def known(self, keys: Ids) -> Ids:
        """Gives those keys whose columns are known."""
        return keys if self.takes_any else keys[np.isin(keys, self.declared)]

    def using(self, changed: Mapping[str, Ids], *, own: bool) -> Ids:
        """Gives the keys of declared items that take a row which changed.

        Args:
          changed: the rows' ids by table.
          own: whether the row of an item's identifier counts too.
        """
        uses = np.zeros(len(self.declared), np.bool_)
        for feature in self._features:
            if feature.name == self._identifier and not own:
                continue
            ids = changed.get(feature.table_name, np.zeros(0, np.int64))
            column = self._columns[feature.name]
            if isinstance(column, tf.RaggedTensor):
                rows = column.value_rowids().numpy()
                uses[rows[np.isin(column.flat_values.numpy(), ids)]] = True
            else:
                uses |= np.isin(column.numpy(), ids)
        return self.declared[uses]

    def batches(self, keys: Ids) -> Iterator[tuple[Ids, dict[str, Any]]]:
        """Gives items' keys and columns, a batch at a time; their columns must be known."""
        for first in range(0, len(keys), BATCH_ROWS):
            part = keys[first : first + BATCH_ROWS]
            if self.takes_any:
                yield part, {str(self._identifier): tf.constant(part)}
            else:
                places = self._order[np.searchsorted(self._sorted, part)]
                columns = self._columns.items()
                yield part, {name: tf.gather(value, places) for name, value in columns}

    @property
    def id_dtype(self) -> tf.DType:
        """Of the items' identifiers."""
        return tf.int64 if self._names is None else self._names.dtype

    def identifiers(self, keys: Ids) -> Any:
        """Gives the identifiers of found keys, an array of their shape."""
        if self._names is None:
            return keys
        empty = tf.zeros([1], self._names.dtype) if self._names.dtype != tf.string else [""]
        names = tf.concat([empty, self._names], axis=0)
        return tf.gather(names, np.where(keys == NO_ITEM, 0, keys + 1)).numpy()


def _read(candidates: Candidates) -> dict[str, Any]:
    parts: dict[str, list[Any]] = {name: [] for name in candidates.columns}
    for batch in candidates.batches:
        for name, value in batch.items():
            parts[name].append(value)
    return {name: tf.concat(values, axis=0) for name, values in parts.items()}
