"""The items of a retrieval model in memory: encoded, ranked for queries, and kept up to date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embedps.engine.corpus_metrics import encoder
from embedps.engine.row_padding import pad
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.layers.candidates import Candidates
from embedps.layers.embeddings import Embeddings
from embedps.serving.inputs import rows_of
from embedps.serving.server.item_catalog import ItemCatalog
from embedps.serving.server.item_index import NO_ITEM, NO_SCORE, Ids, ItemIndex
from embedps.serving.server.ranking import Ranking
from embedps.serving.server.row_changes import RowChanges
from embedps.serving.server.tensor_values import Array
from embedps.serving.server.top_k_format import TopKFormat, TopKRequest
from embedps.tables.collection import EmbeddingCollection

QUERY = "query"  # the prediction that is a query's vector
_NONE: Ids = np.zeros(0, np.int64)


def ranks_items(model: StepModel) -> bool:
    """Tells whether a model has items to rank, and queries for them."""
    return len(model.candidates) == 1 and QUERY in model.prediction_names


class LiveItems:
    """Items with the vectors of the present rows and network.

    Attributes:
      format: of the requests.
      tables: whose rows the vectors depend on.
    """

    def __init__(self, model: StepModel, collection: EmbeddingCollection, ranking: Ranking) -> None:
        """Reads which items there are; `load` encodes them.

        Args:
          model: for which `ranks_items` holds.
          collection: its rows.
          ranking: how items are ranked.

        Raises:
          UsageError: a column of the query has the name of another tensor of a request, or items'
            vectors are not of the queries' length.
        """
        (candidates,) = model.candidates
        self._catalog = ItemCatalog(candidates, model.features)
        self._by_row = ranking.items == "rows" and self._catalog.table is not None
        self._encode = _encoder(candidates, model.embeddings, collection)
        traced = self._encode.get_concrete_function()
        self._variables: Sequence[tf.Variable] = traced.graph.variables
        self.format = TopKFormat(
            model.columns_of(model.output_inputs(QUERY)),
            missing_id=model.recommender.missing_id,
            has_ids=self._catalog.has_ids,
            default_k=ranking.default_k,
            max_k=ranking.max_k,
        )
        self.tables = self._catalog.tables
        self._keys = _NONE  # of the items that are ranked, in ascending order
        self._index = ItemIndex(_dim_of(traced, type(model.model).__name__))

    @property
    def index(self) -> ItemIndex:
        """The vectors."""
        return self._index

    @property
    def id_dtype(self) -> tf.DType:
        """Of the identifiers that are found."""
        return self._catalog.id_dtype

    def load(self, changes: Mapping[str, RowChanges]) -> None:
        """Encodes all items.

        Args:
          changes: of `tables`, by the whole chain.
        """
        keys = self._catalog.declared
        if self._by_row:
            keys = self._catalog.known(changes[str(self._catalog.table)].set)
        self._keys = np.unique(keys)
        self._encode_all()

    def refresh(self, changes: Mapping[str, RowChanges], *, is_tower_new: bool) -> None:
        """Encodes what changed, once rows and network are new.

        Args:
          changes: of `tables`, since the last call.
          is_tower_new: whether `depends_on_changed` held: then all items are encoded.
        """
        removed, added = _NONE, _NONE
        if self._by_row:
            of_items = changes[str(self._catalog.table)]
            removed, added = of_items.removed, self._catalog.known(of_items.set)
            self._keys = np.union1d(np.setdiff1d(self._keys, removed), added)
        if is_tower_new:
            self._encode_all()
            return
        using = self._catalog.using({name: each.ids for name, each in changes.items()})
        present = using[np.isin(using, self._keys)]
        self._index = self._changed(self._index, np.union1d(present, added), removed)

    def is_tower_new(self, values: Sequence[tuple[tf.Variable, Any]]) -> bool:
        """Tells whether new values of variables change how items are encoded."""
        ours = {id(variable) for variable in self._variables}
        return any(
            id(variable) in ours and not np.array_equal(variable.numpy(), value)
            for variable, value in values
        )

    def best(self, queries: tf.Tensor, request: TopKRequest) -> dict[str, Array]:
        """Finds the best items of each query.

        Returns:
          "ids" [rows, k] and "scores", float32 [rows, k], for the largest k of the request. Where
          a query has no item any more, or asked for fewer, the score is NO_SCORE.
        """
        most = int(request.k.max(initial=1))
        scores, keys = self._index.search(
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

    def _encode_all(self) -> None:
        self._index = self._changed(ItemIndex(self._index.dim), self._keys, _NONE)

    def _changed(self, index: ItemIndex, keys: Ids, removed: Ids) -> ItemIndex:
        parts = [(part, self._encode(columns)) for part, columns in self._catalog.batches(keys)]
        ids = np.concatenate([_NONE, *(part for part, _ in parts)])
        vectors = tf.concat([tf.zeros([0, index.dim]), *(found for _, found in parts)], axis=0)
        return index.changed(ids, vectors, removed)


def _encoder(
    candidates: Candidates, embeddings: Embeddings, collection: EmbeddingCollection
) -> Any:
    """Makes a function that encodes a batch of items, whose bits do not depend on the batch."""
    encode = encoder(candidates, embeddings, collection)
    specs = candidates.column_specs

    @tf.function(input_signature=[specs])
    def padded(batch: dict[str, Any]) -> tf.Tensor:
        rows = rows_of(next(iter(batch.values())))
        return encode({name: pad(value, rows) for name, value in batch.items()})[:rows]

    return padded


def _dim_of(traced: Any, model: str) -> int:
    shape = traced.structured_outputs.shape
    if shape.rank != 2 or shape[1] is None:
        raise UsageError(
            f"the candidates of {model} must be encoded as vectors of a known length but have "
            f"shape {shape}: give its tower an output of fixed width"
        )
    return int(shape[1])
