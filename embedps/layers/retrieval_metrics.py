"""Scores of retrieval over a whole corpus: recall, NDCG, hit rate and MRR, by counting ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from embedps import kernels
from embedps.errors import UsageError
from embedps.layers.candidates import Candidates

_KINDS = ("recall", "ndcg", "hit_rate")


def count_ranks(
    queries: tf.Tensor,
    candidates: tf.Tensor,
    wanted: tf.RaggedTensor,
    seen: tf.RaggedTensor | None = None,
) -> tf.RaggedTensor:
    """Counts, for each wanted candidate, the candidates that its query ranks higher.

    The score is the dot product. Of equal scores the first candidate ranks higher, as in
    `tf.math.top_k`. No scores are kept, so memory does not grow with the candidates.

    Args:
      queries: float32 [batch, dim].
      candidates: float32 [n, dim].
      wanted: int64 [batch, None], places of candidates; -1 is none of them, and ranks last.
      seen: int64 [batch, None], places of candidates that are left out; -1 is none.

    Returns:
      int64 [batch, None] in the form of `wanted`; 0 is the best rank.
    """
    if seen is None:
        seen = tf.RaggedTensor.from_row_splits(
            tf.zeros([0], tf.int64), tf.zeros_like(wanted.row_splits), validate=False
        )
    ranks = kernels.load().embedps_ranks(
        queries,
        candidates,
        wanted.values,
        tf.cast(wanted.row_splits, tf.int64),
        seen.values,
        tf.cast(seen.row_splits, tf.int64),
    )
    return wanted.with_values(ranks)


class RetrievalMetrics(tf.keras.metrics.Metric):
    """Recall@k, NDCG@k, hit rate@k and MRR of held-out items among all candidates.

    For each row of a batch: the share of its items among the best k, the discounted gain over the
    best possible one (Jarvelin and Kekalainen 2002), whether there is any, and the reciprocal of
    the best rank. They are means over the rows that have an item. An engine encodes the candidates
    once per checkpoint. In steps of training the metrics count nothing.
    """

    def __init__(
        self, candidates: Candidates, *, at: Sequence[int] = (10, 20, 100), name: str = "retrieval"
    ) -> None:
        """Declares the scores.

        Args:
          candidates: all items, with an int64 identifier, in its ascending order.
          at: the values of k.

        Raises:
          UsageError: a k is below 1, or the candidates have no int64 identifier.
        """
        super().__init__(name=name)
        if not at or min(at) < 1:
            raise UsageError(f"RetrievalMetrics must have values of k from 1 but got at={list(at)}")
        if candidates.encoded_specs[1].dtype != tf.int64:
            raise UsageError("RetrievalMetrics needs candidates with an int64 identifier")
        self._candidates = candidates
        self._at = tuple(at)
        self._is_paused = False
        self._sums = self.add_weight(
            "sums", [2 + len(_KINDS) * len(self._at)], dtype=tf.float64, initializer="zeros"
        )

    def update_state(
        self, queries: tf.Tensor, items: Any, seen: tf.RaggedTensor | None = None
    ) -> None:
        """Counts a batch.

        Args:
          queries: float32 [batch, dim].
          items: ids of held-out items, int64 [batch] or ragged [batch, None]. One that is no
            candidate counts as not found, one that a row has twice counts once.
          seen: ids of items to leave out, ragged int64 [batch, None], such as those that the user
            has had.
        """
        if self._is_paused:
            return
        if not isinstance(items, tf.RaggedTensor):
            items = tf.RaggedTensor.from_tensor(items[:, None])
        items = _each_once(items)
        embeddings, ids = self._candidates.encoded_now(queries.shape[-1])
        ranks = count_ranks(
            queries,
            embeddings,
            items.with_values(places_of(items.values, ids)),
            None if seen is None else seen.with_values(places_of(seen.values, ids)),
        )
        self._sums.assign_add(self._count(ranks, tf.size(ids, tf.int64)))

    def _count(self, ranks: tf.RaggedTensor, num_candidates: tf.Tensor) -> tf.Tensor:
        rows, batch = ranks.value_rowids(), ranks.nrows()
        of_row = lambda values: tf.math.unsorted_segment_sum(  # noqa: E731
            tf.cast(values, tf.float64), rows, batch
        )
        rank = tf.cast(ranks.values, tf.float64)
        gain = tf.math.log(tf.constant(2.0, tf.float64)) / tf.math.log(rank + 2)
        is_found = ranks.values < num_candidates  # else it is none of them, and ranks last
        lengths = tf.cast(ranks.row_lengths(), tf.int64)
        has_items = lengths > 0
        sums = [tf.reduce_sum(tf.cast(has_items, tf.float64))]
        found: dict[str, list[tf.Tensor]] = {kind: [] for kind in _KINDS}
        for k in self._at:
            is_hit = is_found & (ranks.values < k)
            hits = of_row(is_hit)
            places = tf.range(1, k + 1, dtype=tf.float64)
            best = tf.cumsum(tf.math.log(tf.constant(2.0, tf.float64)) / tf.math.log(places + 1))
            ideal = tf.gather(best, tf.clip_by_value(lengths, 1, k) - 1)
            found["recall"].append(hits / tf.cast(tf.maximum(lengths, 1), tf.float64))
            found["ndcg"].append(of_row(tf.where(is_hit, gain, tf.zeros_like(gain))) / ideal)
            found["hit_rate"].append(tf.cast(hits > 0, tf.float64))
        reciprocal = tf.math.unsorted_segment_max(1 / (rank + 1), rows, batch)
        sums.append(tf.reduce_sum(tf.where(has_items, reciprocal, tf.zeros_like(reciprocal))))
        sums += [tf.reduce_sum(each) for kind in _KINDS for each in found[kind]]
        return tf.stack(sums)

    def result(self) -> dict[str, tf.Tensor]:
        """Computes the means so far: "recall@10" and so on, and "mrr"; NaN without rows."""
        means = self._sums[1:] / self._sums[0]
        names = [f"{kind}@{k}" for kind in _KINDS for k in self._at]
        return {**{name: means[1 + i] for i, name in enumerate(names)}, "mrr": means[0]}

    def reset_state(self) -> None:
        """Forgets what was counted."""
        self._sums.assign(tf.zeros_like(self._sums))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Makes updates count nothing within the block."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before


def _each_once(items: tf.RaggedTensor) -> tf.RaggedTensor:
    """Leaves out what a row has again, ragged int64 [batch, None]."""
    pairs = tf.stack([tf.cast(items.value_rowids(), tf.int64), items.values], axis=1)
    found, _ = tf.raw_ops.UniqueV2(x=pairs, axis=tf.constant([0], tf.int64))
    return tf.RaggedTensor.from_value_rowids(
        found[:, 1], found[:, 0], nrows=tf.cast(items.nrows(), tf.int64), validate=False
    )


def places_of(ids: tf.Tensor, known: tf.Tensor) -> tf.Tensor:
    """Gives the places of ids, int64 [n], in ascending `known`, int64 [m]; -1 of others."""
    places = tf.searchsorted(known, ids, out_type=tf.int64)
    last = tf.size(known, tf.int64) - 1
    is_known = tf.gather(known, tf.minimum(places, last)) == ids
    return tf.where(is_known, places, tf.fill(tf.shape(places), tf.constant(-1, tf.int64)))
