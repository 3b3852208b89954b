"""The items of a retrieval model in memory: encoded, ranked for queries, and kept up to date."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedps.console.lines import say
from embedps.data.distinct_ids import sorted_distinct
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.serving.server.item_catalog import ItemCatalog
from embedps.serving.server.item_encoder import ItemEncoder
from embedps.serving.server.item_index import NO_ITEM, NO_SCORE, Ids, ItemIndex
from embedps.serving.server.item_search import ItemSearch
from embedps.serving.server.ivf_index import Floats
from embedps.serving.server.known_ids import QueryIds
from embedps.serving.server.made_columns import of_examples
from embedps.serving.server.popular_items import PopularItems
from embedps.serving.server.ranking import Ranking
from embedps.serving.server.tensor_values import Array
from embedps.serving.server.top_k_format import SEEN, TopKFormat, TopKRequest
from embedps.serving.unknown_queries import NOT_POPULAR, UNKNOWN
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.known_ids import update_rates
from embedps.tables.staged_files import StagedFiles

QUERY = "query"  # the prediction that is a query's vector
_NONE: Ids = np.zeros(0, np.int64)


def ranks_items(model: StepModel) -> bool:
    """Tells whether a model has items to rank, and queries for them."""
    return len(model.candidates) == 1 and QUERY in model.prediction_names


class LiveItems:
    """Items with the vectors of one manifest.

    Attributes:
      format: of the requests.
      examples: of requests of tf.Examples, in which a list of `seen` may be absent.
      query_ids: tells the queries that are unknown.
      unknown_query: what these get; see Ranking.
    """

    def __init__(
        self,
        model: StepModel,
        collection: EmbeddingCollection,
        queries: Callable[[], Floats],
        ranking: Ranking,
    ) -> None:
        """Encodes all items.

        Args:
          model: for which `ranks_items` holds.
          queries: computes a sample of queries, float32 [queries, dim].
          ranking: how items are ranked.

        Raises:
          UsageError: a column of the query has the name of another tensor of a request, or items'
            vectors have no fixed length.
        """
        (candidates,) = model.candidates
        self._ranking, self._collection = ranking, collection
        self._catalog = ItemCatalog(candidates, model.features)
        self._table = self._catalog.table if ranking.items == "rows" else None
        self.query_ids = QueryIds(model, collection, QUERY)
        self.unknown_query = ranking.unknown_query
        if self.unknown_query == "popular" and self._catalog.table is None:
            self.unknown_query = "error"
            say(NOT_POPULAR)
        self._popular: PopularItems | None = None  # of the manifest, once a query needs them
        columns = model.columns_of(model.output_inputs(QUERY))
        missing_id = model.recommender.missing_id
        self.format = TopKFormat(
            columns,
            missing_id=missing_id,
            has_ids=self._catalog.has_ids,
            default_k=ranking.top_k,
            max_k=ranking.max_top_k,
        )
        if self._catalog.has_ids:
            columns = dataclasses.replace(columns, id_lists=(*columns.id_lists, SEEN))
        self.examples = of_examples(self.format, columns, missing_id=missing_id)
        keys = self._catalog.declared
        if self._table is not None:
            keys = self._catalog.known(collection.ids(self._table))
        keys = sorted_distinct(keys)
        self._encoder = ItemEncoder(model, collection)
        shape = queries().shape[1:]
        if shape != (self._encoder.dim,):
            raise UsageError(
                f"the prediction {QUERY!r} of {type(model.model).__name__} must be a vector of "
                f"{self._encoder.dim} floats, as the candidates' are, but has shape "
                f"{shape}"
            )
        empty = ItemIndex(self._encoder.dim)
        index = self._encoder.encode(empty, self._catalog, keys, _NONE)
        self._search = ItemSearch(ranking, keys, index, queries)

    @property
    def index(self) -> ItemIndex:
        """The vectors."""
        return self._search.index

    @property
    def recall(self) -> float:
        """Which share of the exact best items is found, by a sample; 1 if the search is exact."""
        return self._search.recall

    @property
    def id_dtype(self) -> tf.DType:
        """Of the identifiers that are found."""
        return self._catalog.id_dtype

    def prepare(
        self, staged: StagedFiles, values: Sequence[tuple[tf.Variable, Any]]
    ) -> Callable[[], None]:
        """Encodes what changes, beside the vectors that are ranked.

        If the network encodes items otherwise than before, that is all of them.

        Args:
          staged: the rows that lead to the next manifest.
          values: the network's variables with their values there.

        Returns:
          A function that takes the new vectors, which must not run beside `best`.
        """
        changes = {name: staged.changes(name) for name in self._catalog.tables}
        is_new = self._encoder.advance(staged, values)
        search = self._search
        keys, removed, changed = search.keys, _NONE, _NONE
        if self._table is not None:
            own = changes[self._table]
            removed, known = own.removed, self._catalog.known(own.set)
            # NumPy's union1d of a million takes more than a second.
            is_fresh = ~_among(known, keys)
            changed = known[is_fresh | _among(known, own.differing)]
            keys = keys[~_among(keys, removed)]
            keys = np.sort(np.concatenate([keys, known[is_fresh]]), kind="stable")
        if is_new:
            rate = self._ranking.encode_rate
            empty = ItemIndex(self._encoder.dim)
            index = self._encoder.encode(empty, self._catalog, keys, _NONE, rate=rate)
            state = search.replaced(keys, index)
        else:
            differing = {name: each.differing for name, each in changes.items()}
            using = self._catalog.using(differing, own=self._table is None)
            using = using[_among(using, keys) & ~_among(using, changed)]
            changed = np.concatenate([changed, using])
            index = self._encoder.encode(search.index, self._catalog, changed, removed)
            state = search.changed(keys, index, changed, removed)

        before: object = None

        def take() -> None:
            nonlocal before
            self._popular = None
            before = search.take(state)  # goes with this function, when requests do not wait
            self._encoder.forget()

        return take

    def refresh(self) -> None:
        """Takes what was built beside; not beside `prepare` and what it returned."""
        self._search.refresh()

    def best(
        self, queries: tf.Tensor, unknown: npt.NDArray[np.bool_], request: TopKRequest
    ) -> dict[str, Array]:
        """Finds the best items of each query.

        Args:
          queries: their vectors, float32 [rows, dim].
          unknown: which of them are, [rows].
          request: what is asked.

        Returns:
          "ids" [rows, k] and "scores", float32 [rows, k], for the request's `most`. Where
          a query has no item any more, or asked for fewer, the score is NO_SCORE. And `unknown`;
          such a query has popular items with their rates of updates, if it may.
        """
        most = request.most
        scores, keys = self._search.find(queries, request, most)
        if self.unknown_query == "popular" and unknown.any():
            scores, keys = scores.copy(), keys.copy()
            seen, allowed = (_split(*each) for each in (request.seen, request.allowed))
            for row in np.flatnonzero(unknown):
                given = allowed[row] if request.is_limited[row] else None
                found = self._most_popular().best(most, seen=seen[row], allowed=given)
                scores[row], keys[row] = found
        beyond = np.arange(most) >= request.k[:, None]
        keys, scores = (
            np.where(beyond, NO_ITEM, keys),
            np.where(beyond, np.float32(NO_SCORE), scores),
        )
        return {"ids": self._catalog.identifiers(keys), "scores": scores, UNKNOWN: unknown}

    def _most_popular(self) -> PopularItems:
        if self._popular is None:
            keys = self._search.keys
            rates, _ = update_rates(self._collection, str(self._catalog.table), tf.constant(keys))
            self._popular = PopularItems(keys, rates.numpy())
        return self._popular

    def close(self) -> None:
        """Waits until nothing is built any more."""
        self._search.close()


def _split(values: Ids, lengths: Array) -> list[Ids]:
    """Gives the lists of which the values are, one after another."""
    return np.split(values, np.cumsum(lengths)[:-1])


def _among(ids: Ids, ascending: Ids) -> npt.NDArray[np.bool_]:
    """Tells which ids are among others, which are in ascending order."""
    if not len(ascending):
        return np.zeros(len(ids), np.bool_)
    places = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
    found: npt.NDArray[np.bool_] = ascending[places] == ids
    return found
