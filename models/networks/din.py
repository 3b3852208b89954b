"""DIN: scores an item by attention over the user's history."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedps.engine.click_model import ClickModel
from embedps.layers.dense import MLP
from embedps.layers.embeddings import Embeddings

from .parts import HiddenLayers, filled_numerics


class DIN(ClickModel):
    """Weighs a history by how it fits the item that may be clicked, by a network."""

    def __init__(
        self,
        embeddings: Embeddings,
        *,
        label: str,
        pairs: Sequence[tuple[str, str]],
        attention_mlp: Sequence[int],
        deep_mlp: Sequence[int],
        dropout: float = 0.0,
    ) -> None:
        """Makes the layers.

        Args:
          embeddings: looks up all features; the histories' rows are padded to one length.
          label: the column of 0 and 1.
          pairs: the columns of the history, and the item's column of the same table for each.
          attention_mlp: widths of the layers that weigh an item of the history.
          deep_mlp: widths of the layers over all features; a last layer of one logit is added.
          dropout: share of a deep layer's outputs that a training step drops.
        """
        super().__init__(label=label)
        self.embeddings = embeddings
        self.attention = [tf.keras.layers.Dense(n, activation="sigmoid") for n in attention_mlp]
        self.attend = tf.keras.layers.Dense(1)
        self.hidden = HiddenLayers(deep_mlp, dropout=dropout)
        self.out = MLP([1])
        self._histories, self._targets = zip(*pairs, strict=True)

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        """Computes the logits of a batch, float32 [batch]."""
        found = self.embeddings(features)
        masks = self.embeddings.compute_mask(features) or {}
        with tf.control_dependencies(self._checks(features)):
            history = tf.concat([found[name] for name in self._histories], axis=2)
        target = tf.concat([found[name] for name in self._targets], axis=1)
        mask = tf.cast(masks[self._histories[0]], tf.float32)
        interest = self._pool(history, target, mask)
        others = [value for name, value in found.items() if name not in self._histories]
        inputs = [filled_numerics(features), *others, interest, interest * target]
        deep = self.hidden(tf.concat(inputs, axis=1), training=training)
        return tf.reshape(self.out(deep), [-1])

    def _checks(self, features: Mapping[str, Any]) -> list[tf.Operation]:
        """Makes ops that fail unless histories are equally long: each place is of one event."""
        first, *others = self._histories
        lengths = {name: features[name].row_lengths() for name in others and self._histories}
        return [
            tf.debugging.Assert(
                tf.reduce_all(lengths[first] == lengths[name]),
                [f"the lists of {first} and {name} must be equally long in each row"],
            )
            for name in others
        ]

    def _pool(self, history: tf.Tensor, target: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Adds the history's vectors [batch, length, dim] by their weights."""
        each = tf.repeat(target[:, None], tf.shape(history)[1], axis=1)
        x = tf.concat([history, each, history - each, history * each], axis=2)
        for layer in self.attention:
            x = layer(x)
        weights = self.attend(x)[:, :, 0] * mask
        return tf.einsum("bl,bld->bd", weights, history)
