"""The items of a retrieval model in memory: encoded, ranked for queries, and kept up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import SaveSet
from embedps.engine.step_model import StepModel
from embedps.serving.server.item_catalog import ItemCatalog
from embedps.serving.server.item_encoder import ItemEncoder
from embedps.serving.server.item_index import NO_ITEM, NO_SCORE, Ids, ItemIndex
from embedps.serving.server.ranking import Ranking
from embedps.serving.server.row_changes import RowChanges, read_changes
from embedps.serving.server.tensor_values import Array
from embedps.serving.server.top_k_format import TopKFormat, TopKRequest
from embedps.tables.collection import EmbeddingCollection

QUERY = "query"  # the prediction that is a query's vector
_NONE: Ids = np.zeros(0, np.int64)


def ranks_items(model: StepModel) -> bool:
    """Tells whether a model has items to rank, and queries for them."""
    return len(model.candidates) == 1 and QUERY in model.prediction_names


class LiveItems:
    """Items with the vectors of one manifest.

    Attributes:
      format: of the requests.
      index: the vectors.
    """

    def __init__(
        self,
        model: StepModel,
        collection: EmbeddingCollection,
        directory: CheckpointDirectory,
        chain: Sequence[SaveSet],
        ranking: Ranking,
    ) -> None:
        """Encodes all items.

        Args:
          model: for which `ranks_items` holds.
          collection: its rows.
          directory: of the checkpoints.
          chain: the saves that the rows are of.
          ranking: how items are ranked.

        Raises:
          UsageError: a column of the query has the name of another tensor of a request, or items'
            vectors have no fixed length.
        """
        (candidates,) = model.candidates
        self._directory, self._ranking = directory, ranking
        self._catalog = ItemCatalog(candidates, model.features)
        self._by_row = ranking.items == "rows" and self._catalog.table is not None
        self.format = TopKFormat(
            model.columns_of(model.output_inputs(QUERY)),
            missing_id=model.recommender.missing_id,
            has_ids=self._catalog.has_ids,
            default_k=ranking.default_k,
            max_k=ranking.max_k,
        )
        keys = self._catalog.declared
        if self._by_row:
            changes = self._of_items(read_changes(directory, chain, self._catalog.tables))
            keys = self._catalog.known(changes.set)
        self._keys = np.unique(keys)  # of the items that are ranked
        self._encoder = ItemEncoder(model, collection, directory)
        empty = ItemIndex(self._encoder.dim)
        self.index = self._encoder.encode(empty, self._catalog, self._keys, _NONE)

    @property
    def id_dtype(self) -> tf.DType:
        """Of the identifiers that are found."""
        return self._catalog.id_dtype

    def prepare(
        self, saves: Sequence[SaveSet], values: Sequence[tuple[tf.Variable, Any]]
    ) -> Callable[[], None]:
        """Encodes what saves change, beside the vectors that are ranked.

        If the network encodes items otherwise than before, that is all of them.

        Args:
          saves: that lead to the next manifest; the files must have been checked.
          values: the network's variables with their values there.

        Returns:
          A function that takes the new vectors, which must not run beside `best`.

        Raises:
          CorruptCheckpointError: a file is absent, or differs from what was written.
        """
        changes = read_changes(self._directory, saves, self._catalog.tables)
        is_new = self._encoder.advance(saves, changes, values)
        keys, removed, added = self._keys, _NONE, _NONE
        if self._by_row:
            of_items = self._of_items(changes)
            removed, added = of_items.removed, self._catalog.known(of_items.set)
            keys = np.union1d(np.setdiff1d(keys, removed), added)
        if is_new:
            rate = self._ranking.encode_rate
            empty = ItemIndex(self._encoder.dim)
            index = self._encoder.encode(empty, self._catalog, keys, _NONE, rate=rate)
        else:
            using = self._catalog.using({name: each.ids for name, each in changes.items()})
            changed = np.union1d(using[np.isin(using, keys)], added)
            index = self._encoder.encode(self.index, self._catalog, changed, removed)

        def take() -> None:
            self._keys, self.index = keys, index

        return take

    def best(self, queries: tf.Tensor, request: TopKRequest) -> dict[str, Array]:
        """Finds the best items of each query.

        Returns:
          "ids" [rows, k] and "scores", float32 [rows, k], for the largest k of the request. Where
          a query has no item any more, or asked for fewer, the score is NO_SCORE.
        """
        most = int(request.k.max(initial=1))
        scores, keys = self.index.search(
            queries,
            k=most,
            seen=request.seen,
            allowed=request.allowed,
            is_limited=request.is_limited,
        )
        beyond = np.arange(most) >= request.k[:, None]
        keys, scores = (
            np.where(beyond, NO_ITEM, keys),
            np.where(beyond, np.float32(NO_SCORE), scores),
        )
        return {"ids": self._catalog.identifiers(keys), "scores": scores}

    def close(self) -> None:
        """Frees the rows that it encodes with."""
        self._encoder.close()

    def _of_items(self, changes: Mapping[str, RowChanges]) -> RowChanges:
        return changes[str(self._catalog.table)]
