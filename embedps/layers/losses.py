"""Losses of retrieval: softmax over the items of a batch, and contrast of cosines."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

_LEAST = -1e9  # instead of -inf, whose products with 0 are NaN


class Negatives(NamedTuple):
    """Items drawn at random from the catalog, all equally probable: the negatives of every row.

    Attributes:
      vectors: float32 [n, dim].
      ids: int64 [n].
      rates: float32 [n], as `FeatureSpec.rate_as` gives them; None if the loss gets no rates.
    """

    vectors: tf.Tensor
    ids: tf.Tensor
    rates: tf.Tensor | None = None


def in_batch_softmax_loss(
    queries: tf.Tensor,
    items: tf.Tensor,
    ids: tf.Tensor,
    *,
    rates: tf.Tensor | None = None,
    temperature: float = 1.0,
    negatives: Negatives | None = None,
    hard: tuple[tf.Tensor, tf.Tensor] | None = None,
    weights: tf.Tensor | None = None,
) -> tf.Tensor:
    """Computes the mean cross-entropy of each row's item among the items of the batch.

    Popular items are negatives more often than others. With `rates`, each item's logit is lowered
    by the logarithm of how often it is expected in a batch (Yi et al. 2019, "Sampling-bias-
    corrected neural modeling for large corpus item recommendations"). The share p of steps that
    update an item's row estimates that number as -log(1 - p), as if items came independently. So
    no other feature may update the rows that the rates are of. Hard negatives do: then the rates
    must be of a table that only the other items update. Negatives drawn from the catalog (Yang et
    al. 2020, "Mixed negative sampling for learning two-tower neural networks") update their rows
    and are in p already. Negatives with the id of the row's own item are left out.

    Args:
      queries: float32 [batch, dim].
      items: float32 [batch, dim], the item of each row.
      ids: int64 [batch], of the items.
      rates: float32 [batch], as `FeatureSpec.rate_as` gives them; None for no correction.
      temperature: divides the dot products.
      negatives: more negatives of every row.
      hard: more negatives of each row: vectors float32 [batch, n, dim] and ids int64 [batch, n].
        They are always there, so their logits are not lowered.
      weights: float32 [batch], of the rows.

    Returns:
      float32 scalar.
    """
    columns, column_ids = items, ids
    if negatives is not None:
        columns = tf.concat([items, negatives.vectors], axis=0)
        column_ids = tf.concat([ids, negatives.ids], axis=0)
    logits = tf.matmul(queries, columns, transpose_b=True) / temperature
    if rates is not None:
        if negatives is not None:
            if negatives.rates is None:
                raise ValueError("with rates, negatives must have rates too")
            rates = tf.concat([rates, negatives.rates], axis=0)
        logits -= tf.math.log(tf.stop_gradient(-tf.math.log1p(-rates)))
    batch = tf.shape(queries)[0]
    is_own = tf.eye(batch, tf.shape(column_ids)[0], dtype=tf.bool)
    is_same = tf.equal(ids[:, None], column_ids[None, :])
    logits = tf.where(is_same & ~is_own, _LEAST, logits)
    own = tf.linalg.diag_part(logits)
    if hard is not None:
        vectors, hard_ids = hard
        more = tf.einsum("bd,bnd->bn", queries, vectors) / temperature
        logits = tf.concat([logits, tf.where(hard_ids == ids[:, None], _LEAST, more)], axis=1)
    return _mean(tf.reduce_logsumexp(logits, axis=1) - own, weights)


def cosine_contrastive_loss(
    queries: tf.Tensor,
    items: tf.Tensor,
    ids: tf.Tensor,
    *,
    negatives: Negatives,
    margin: float = 0.8,
    negative_weight: float = 150.0,
    weights: tf.Tensor | None = None,
) -> tf.Tensor:
    """Computes SimpleX' CCL (Mao et al. 2021): raises own cosines, lowers others above a margin.

    Args:
      queries: float32 [batch, dim].
      items: float32 [batch, dim], the item of each row.
      ids: int64 [batch], of the items.
      negatives: the negatives of every row.
      margin: cosines below this cost nothing.
      negative_weight: of the negatives' mean.
      weights: float32 [batch], of the rows.

    Returns:
      float32 scalar, the mean of (1 - own cosine) + weight * mean(max(0, cosine - margin)).
    """
    queries, items = tf.nn.l2_normalize(queries, axis=1), tf.nn.l2_normalize(items, axis=1)
    others = tf.nn.l2_normalize(negatives.vectors, axis=1)
    cosines = tf.matmul(queries, others, transpose_b=True)
    above = tf.nn.relu(cosines - margin)
    counts = tf.cast(tf.not_equal(ids[:, None], negatives.ids[None, :]), tf.float32)
    lowered = tf.reduce_sum(above * counts, axis=1) / tf.maximum(tf.reduce_sum(counts, axis=1), 1)
    return _mean(1 - tf.reduce_sum(queries * items, axis=1) + negative_weight * lowered, weights)


def bpr_loss(
    queries: tf.Tensor,
    items: tf.Tensor,
    ids: tf.Tensor,
    *,
    negatives: Negatives,
    weights: tf.Tensor | None = None,
) -> tf.Tensor:
    """Computes BPR (Rendle et al. 2009): each row's item above the negatives, by log-sigmoid.

    Args:
      queries: float32 [batch, dim].
      items: float32 [batch, dim], the item of each row.
      ids: int64 [batch], of the items.
      negatives: the negatives of every row.
      weights: float32 [batch], of the rows.

    Returns:
      float32 scalar, the mean over rows and negatives.
    """
    own = tf.reduce_sum(queries * items, axis=1, keepdims=True)
    losses = tf.nn.softplus(tf.matmul(queries, negatives.vectors, transpose_b=True) - own)
    counts = tf.cast(tf.not_equal(ids[:, None], negatives.ids[None, :]), tf.float32)
    sums = tf.reduce_sum(losses * counts, axis=1)
    return _mean(sums / tf.maximum(tf.reduce_sum(counts, axis=1), 1), weights)


def _mean(losses: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
    if weights is None:
        return tf.reduce_mean(losses)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * weights), tf.reduce_sum(weights))
