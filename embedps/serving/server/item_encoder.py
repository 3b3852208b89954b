"""Encodes items with rows and a network that are not served yet, beside those that are."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import SaveSet
from embedps.engine.checkpoint_restore import load_rows
from embedps.engine.row_padding import pad
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.serving.inputs import rows_of
from embedps.serving.server.item_catalog import ItemCatalog
from embedps.serving.server.item_index import Ids, ItemIndex
from embedps.serving.server.row_changes import RowChanges
from embedps.tables.collection import EmbeddingCollection, LookupResult

_CHANGE_BATCHES = 32
_NONE: Ids = np.zeros(0, np.int64)


class ItemEncoder:
    """Computes items' vectors as of the served manifest and some saves after it.

    The saves' rows are in tables of their own, and the network's new values in variables of their
    own. So nothing that answers requests changes.

    Attributes:
      dim: of the vectors.
    """

    def __init__(
        self, model: StepModel, collection: EmbeddingCollection, directory: CheckpointDirectory
    ) -> None:
        """Traces the item tower.

        Args:
          model: whose candidates are encoded.
          collection: the rows that are served.
          directory: of the checkpoints.

        Raises:
          UsageError: the candidates' vectors have no fixed length.
        """
        (self._candidates,) = model.candidates
        self._embeddings, self._served, self._directory = model.embeddings, collection, directory
        self._newer = EmbeddingCollection(
            model.tables,
            model.features,
            devices=collection.devices,
            container=f"{collection.container}-newer",
            trainable=False,
        )
        self._tables = [table.name for table in collection.tables]
        changed = [tf.TensorSpec([None], tf.int64)] * len(self._tables)
        function = tf.function(
            self._encoded, input_signature=[self._candidates.column_specs, changed]
        )
        self._encode = function.get_concrete_function()
        # The tower's variables, and those that take their place.
        self._own = {v.ref(): tf.Variable(v, trainable=False) for v in self._encode.graph.variables}
        handles = {id(v.deref().handle): own.handle for v, own in self._own.items()}
        given = self._encode.captured_inputs
        self._encode.set_external_captures([handles.get(id(each), each) for each in given])
        shape = self._encode.structured_outputs.shape
        if shape.rank != 2 or shape[1] is None:
            raise UsageError(
                f"the candidates of {type(model.model).__name__} must be encoded as vectors of a "
                f"known length but have shape {shape}: give its tower an output of fixed width"
            )
        self.dim = int(shape[1])
        self._changed = [tf.constant(_NONE)] * len(self._tables)

    def advance(
        self,
        saves: Sequence[SaveSet],
        changes: Mapping[str, RowChanges],
        values: Sequence[tuple[tf.Variable, Any]],
    ) -> bool:
        """Takes what leads from the served manifest to the next; the files must have been checked.

        Args:
          saves: in order; those of the call before no longer count.
          changes: what they change in the tables that items depend on.
          values: the network's variables with their new values.

        Returns:
          Whether the network encodes items otherwise than before.

        Raises:
          CorruptCheckpointError: a file is absent, or differs from what was written.
        """
        self._newer.clear()
        load_rows(self._newer, self._directory, saves)
        self._changed = [
            tf.constant(np.sort(changes[name].ids) if name in changes else _NONE)
            for name in self._tables
        ]
        is_new = False
        for variable, value in values:
            own = self._own.get(variable.ref())
            if own is not None and not np.array_equal(variable.numpy(), value):
                is_new = True
            if own is not None:
                own.assign(value)
        return is_new

    def encode(
        self, index: ItemIndex, catalog: ItemCatalog, keys: Ids, removed: Ids, *, rate: float = 0
    ) -> ItemIndex:
        """Makes an index of another one.

        Args:
          index: which stays as it is.
          catalog: has the items' columns.
          keys: of items to encode, and to add or replace.
          removed: keys of items to remove.
          rate: how many items to encode per second at most; 0 for as many as it can.
        """
        began, done = time.monotonic(), 0
        ids, vectors = [_NONE], [tf.zeros([0, self.dim])]
        for part, columns in catalog.batches(keys):
            ids.append(part)
            vectors.append(self._encode(columns, self._changed))
            done += len(part)
            if len(ids) > _CHANGE_BATCHES:  # vectors are not kept twice
                index = index.changed(np.concatenate(ids), tf.concat(vectors, axis=0), removed)
                ids, vectors, removed = ids[:1], vectors[:1], _NONE
            early = done / rate - (time.monotonic() - began) if rate else 0.0
            if early > 0:
                time.sleep(early)
        return index.changed(np.concatenate(ids), tf.concat(vectors, axis=0), removed)

    def close(self) -> None:
        """Frees the rows."""
        self._newer.drop()

    def _encoded(self, batch: dict[str, Any], changed: Sequence[tf.Tensor]) -> tf.Tensor:
        rows = rows_of(next(iter(batch.values())))
        # In whole lanes: the bits do not depend on the batch.
        batch = {name: pad(value, rows) for name, value in batch.items()}
        features = {feature.name for feature in self._embeddings.features}
        ids = {name: value for name, value in batch.items() if name in features}
        served = self._served.lookup(ids, insert=False, partial=True)
        newer = self._newer.lookup(ids, insert=False, partial=True)
        found = served._replace(rows=self._newest(served, newer, changed))
        with self._embeddings.providing(self._served.combine(found)):
            return self._candidates.tower(batch)[:rows]

    def _newest(
        self, served: LookupResult, newer: LookupResult, changed: Sequence[tf.Tensor]
    ) -> list[list[tf.Tensor]]:
        """Takes the newer row of each id that changed, by group and shard."""
        by_table = dict(zip(self._tables, changed, strict=True))
        rows = []
        for g, group in enumerate(self._served.groups):
            routed, tables = served.routed[g], [by_table[table.name] for table in group.tables]
            rows.append(
                [
                    tf.where(_among(ids, splits, tables)[:, None], new, old)
                    for ids, splits, old, new in zip(
                        routed.shard_ids,
                        routed.shard_splits,
                        served.rows[g],
                        newer.rows[g],
                        strict=True,
                    )
                ]
            )
        return rows


def _among(ids: tf.Tensor, splits: tf.Tensor, changed: Sequence[tf.Tensor]) -> tf.Tensor:
    """Tells which ids, by table ids[splits[t]:splits[t + 1]], are among those that changed."""
    parts = []
    for t, sorted_ids in enumerate(changed):
        own = ids[splits[t] : splits[t + 1]]
        first = tf.searchsorted(sorted_ids, own, side="left")
        parts.append(first < tf.searchsorted(sorted_ids, own, side="right"))
    return tf.concat(parts, axis=0)
