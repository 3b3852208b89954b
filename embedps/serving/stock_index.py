"""Finds the best of a model's candidates exactly, by stock ops of TensorFlow."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from embedps.layers.candidates import Encoded


class StockIndex(tf.Module):
    """Encoded candidates as variables.

    Attributes:
      num_items: how many candidates there are.
      dim: of their vectors.
      excludes: whether `top_k` can leave out candidates; it can if their identifiers are int64.
    """

    def __init__(self, encoded: Encoded, *, k: int, rates: tf.Tensor | None = None) -> None:
        """Takes the candidates.

        Args:
          encoded: what `Candidates.encoded` returned.
          k: how many `top_k` gives; all if there are fewer.
          rates: the share of steps that update each, float32, to give the most popular ones to
            unknown queries.
        """
        super().__init__(name="index")
        vectors, ids = encoded
        self.num_items, self.dim = (int(n) for n in vectors.shape)
        self.excludes = ids.dtype == tf.int64
        self._k = min(k, self.num_items)
        self._vectors = tf.Variable(vectors, trainable=False, name="items")
        self._ids = tf.Variable(ids, trainable=False, name="item_ids")
        self._rates = None if rates is None else tf.Variable(rates, trainable=False, name="rates")
        if self.excludes:
            order = np.argsort(ids.numpy(), kind="stable")
            self._order = tf.Variable(order, trainable=False, name="item_order")
            self._sorted = tf.Variable(ids.numpy()[order], trainable=False, name="sorted_ids")

    def top_k(
        self, queries: tf.Tensor, seen: tf.RaggedTensor | None, unknown: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Finds the candidates of the highest dot products.

        Args:
          queries: float32 [rows, dim].
          unknown: bool [rows], the queries to which rates, if there are any, are the scores.
          seen: identifiers to leave out, int64 [rows, None]; others than candidates' do nothing.

        Returns:
          "ids" [rows, k], the best first, and their "scores", float32 [rows, k]. What is left out
          comes last, with the least float as its score.
        """
        scores = tf.matmul(queries, self._vectors, transpose_b=True)
        if self._rates is not None and unknown is not None:
            scores = tf.where(unknown[:, None], self._rates[None], scores)
        if seen is not None:
            given = seen.values
            at = tf.minimum(tf.searchsorted(self._sorted, given, out_type=tf.int64), self._last)
            places = tf.gather(self._order, at)
            is_candidate = tf.equal(tf.gather(self._ids, places), given)
            cells = tf.stack([seen.value_rowids(), places], axis=1)
            cells = tf.boolean_mask(cells, is_candidate)
            least = tf.fill(tf.shape(cells)[:1], tf.float32.min)
            scores = tf.tensor_scatter_nd_update(scores, cells, least)
        best, places = tf.math.top_k(scores, k=self._k)
        return {"ids": tf.gather(self._ids, places), "scores": best}

    @property
    def _last(self) -> tf.Tensor:
        return tf.constant(self.num_items - 1, tf.int64)
