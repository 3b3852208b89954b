"""SASRec: retrieves what follows a history, by self-attention."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps.data.corpus import Corpus
from embedps.layers.candidates import Candidates
from embedps.layers.embeddings import Embeddings
from embedps.layers.retrieval_metrics import RetrievalMetrics

from .names import NEGATIVES
from .parts import drawn

_LEAST = -1e9


class _Block(tf.keras.layers.Layer):
    """Causal self-attention and two layers per position, each added to its input."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__(autocast=False)
        layers = tf.keras.layers
        self.attention = layers.MultiHeadAttention(heads, dim // heads, dropout=dropout)
        self.first_norm, self.second_norm = layers.LayerNormalization(), layers.LayerNormalization()
        self.widen, self.narrow = layers.Dense(dim, activation="relu"), layers.Dense(dim)
        self.dropout = layers.Dropout(dropout)

    def call(self, x: tf.Tensor, mask: tf.Tensor, training: bool = False) -> tf.Tensor:
        found = self.attention(
            self.first_norm(x),
            x,
            attention_mask=mask[:, None, :],
            use_causal_mask=True,
            training=training,
        )
        x += self.dropout(found, training=training)
        y = self.narrow(self.dropout(self.widen(self.second_norm(x)), training=training))
        return x + self.dropout(y, training=training)


class SASRec(tfrs.Model):
    """Predicts at each position of a history the next item, by self-attention."""

    def __init__(
        self,
        embeddings: Embeddings,
        corpus: Corpus,
        *,
        history: str,
        item: str,
        dim: int,
        max_length: int,
        blocks: int,
        heads: int,
        num_negatives: int,
        dropout: float,
        seen: str | None = None,
        at: Sequence[int] = (10, 20, 100),
    ) -> None:
        """Makes the layers.

        Args:
          embeddings: looks up the history, padded, the item after it, and NEGATIVES.
          corpus: the items.
          history: the column of a user's items, the latest last.
          item: the column of the item that follows.
          dim: floats per item.
          max_length: of a history.
          blocks: of attention.
          heads: of attention per block.
          num_negatives: items of the catalog that a step draws.
          dropout: share of units that a training step drops.
          seen: a column of lists of items that an evaluation leaves out.
          at: the k of recall@k and so on.
        """
        super().__init__()
        self.embeddings = embeddings
        self.positions = tf.keras.layers.Embedding(max_length, dim)
        self.dropout = tf.keras.layers.Dropout(dropout)
        self.blocks = [_Block(dim, heads, dropout) for _ in range(blocks)]
        self.norm = tf.keras.layers.LayerNormalization()
        self._history, self._item, self._seen, self.weight = history, item, seen, ""
        self._max_length, self._num_negatives = max_length, num_negatives
        self._catalog = tf.constant(corpus.ids)
        self.candidates = Candidates(corpus.batches(), self.encode_items, identifier=item)
        self.scores = RetrievalMetrics(self.candidates, at=at)

    def prepare(self, features: Mapping[str, Any], *, training: bool) -> dict[str, tf.Tensor]:
        """Draws items from the catalog, all equally probable: the negatives of a step."""
        return {NEGATIVES: drawn(self._catalog, self._num_negatives)}

    def encode_items(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Encodes items, float32 [batch, dim]: their rows."""
        return self.embeddings({self._item: features[self._item]})[self._item]

    def call(self, features: Mapping[str, Any], training: bool = False) -> dict[str, tf.Tensor]:
        """Gives the vector of what follows a history, float32 [batch, dim]."""
        history = {self._history: features[self._history]}
        rows = self.embeddings(history)[self._history]
        mask = self._mask(history)
        return {"query": self._last(self._encode(rows, mask, training=bool(training)), mask)}

    def compute_loss(self, features: Mapping[str, Any], training: bool = False) -> tf.Tensor:
        """Computes the mean loss over positions, and counts ranks when not in training."""
        if NEGATIVES not in features:
            features = {**features, **self.prepare(features, training=training)}
        found = self.embeddings(features)
        mask = self._mask(features)
        x = self._encode(found[self._history], mask, training=training)
        if not training:
            seen = features[self._seen] if self._seen else None
            self.scores.update_state(self._last(x, mask), features[self._item], seen)
        last = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1) - 1
        at_last = tf.equal(tf.range(self._max_length)[None], last[:, None])
        following = tf.roll(found[self._history], -1, axis=1)
        following = tf.where(at_last[:, :, None], found[self._item][:, None], following)
        ids = features[self._history][:, -self._max_length :].to_tensor(
            -1, shape=[None, self._max_length]
        )
        ids = tf.where(at_last, features[self._item][:, None], tf.roll(ids, -1, axis=1))
        is_own = tf.equal(ids[:, :, None], features[NEGATIVES])
        # The drawn items stand for all others.
        own = tf.reduce_sum(x * following, axis=2, keepdims=True)
        scores = tf.where(is_own, _LEAST, tf.einsum("bld,nd->bln", x, found[NEGATIVES]))
        stands_for = self._catalog.shape[0] / self._num_negatives
        logits = tf.concat([own, scores + tf.math.log(stands_for)], axis=2)
        losses = tf.reduce_logsumexp(logits, axis=2) - own[:, :, 0]
        weights = tf.cast(mask, tf.float32)
        if self.weight:
            weights *= features[self.weight][:, None]
        return tf.math.divide_no_nan(tf.reduce_sum(losses * weights), tf.reduce_sum(weights))

    def _encode(self, rows: tf.Tensor, mask: tf.Tensor, *, training: bool) -> tf.Tensor:
        x = self.dropout(rows + self.positions(tf.range(self._max_length)), training=training)
        for block in self.blocks:
            x = block(x, mask, training=training)
        return self.norm(x)

    def _mask(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Tells which positions of a history have an item, bool [batch, length]."""
        return (self.embeddings.compute_mask(features) or {})[self._history]

    def _last(self, x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Gives the vector at a history's last position; zeros for an empty history."""
        lengths = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)
        last = tf.gather(x, tf.maximum(lengths - 1, 0), batch_dims=1)
        return last * tf.cast(lengths > 0, tf.float32)[:, None]
