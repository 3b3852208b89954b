"""Parts of the zoo's networks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedps.data.unit_reader import NUMERICS
from embedps.layers.dense import MLP


def filled_numerics(features: Mapping[str, Any]) -> tf.Tensor:
    """Gives a batch's numeric features, then whether each is missing: float32 [batch, 2 n].

    A missing number is 0, and 1 among the second half.
    """
    numerics = features[NUMERICS]
    is_missing = tf.math.is_nan(numerics)
    filled = tf.where(is_missing, tf.zeros_like(numerics), numerics)
    return tf.concat([filled, tf.cast(is_missing, tf.float32)], axis=1)


def stacked(rows: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Stacks the rows of an example's features: float32 [batch, features, dim]."""
    return tf.stack(list(rows.values()), axis=1)


def flat(vectors: tf.Tensor) -> tf.Tensor:
    """Joins an example's vectors: [batch, features, dim] to [batch, features * dim]."""
    return tf.reshape(vectors, [-1, vectors.shape[1] * vectors.shape[2]])


def pairwise_sum(vectors: tf.Tensor) -> tf.Tensor:
    """Sums the dot products of all pairs of an example's vectors, in linear time (Rendle 2010).

    Args:
      vectors: float32 [batch, n, dim].

    Returns:
      float32 [batch].
    """
    square_of_sum = tf.square(tf.reduce_sum(vectors, axis=1))
    sum_of_squares = tf.reduce_sum(tf.square(vectors), axis=1)
    return 0.5 * tf.reduce_sum(square_of_sum - sum_of_squares, axis=1)


def drawn(catalog: tf.Tensor, count: int) -> tf.Tensor:
    """Draws so many of a catalog's items, int64 [items], all equally probable."""
    places = tf.random.uniform([count], maxval=tf.size(catalog, tf.int64), dtype=tf.int64)
    return tf.gather(catalog, places)


class Numerics(tf.keras.layers.Layer):
    """Encodes a batch's numbers by bins, and by waves, if it has any (Gorishniy et al. 2022)."""

    def __init__(
        self,
        edges: npt.NDArray[np.float32] | None = None,
        *,
        waves: int = 0,
        moments: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Takes the bins.

        Args:
          edges: of the bins, ascending, float32 [n, bins + 1]. None gives the numbers themselves,
            as `filled_numerics` does. A checkpoint keeps the edges.
          waves: how many frequencies are learned per number.
          moments: without edges, the means and deviations to scale numbers by, float32 [2, n]. A
            missing number is the mean then. A checkpoint keeps them.
        """
        super().__init__(autocast=False)
        self._edges = self._frequencies = self._moments = None
        if moments is not None and moments.size:
            first = tf.constant_initializer(moments)
            self._moments = self.add_weight(
                "moments", moments.shape, initializer=first, trainable=False
            )
        if edges is not None and edges.size:
            first = tf.constant_initializer(edges)
            self._edges = self.add_weight("edges", edges.shape, initializer=first, trainable=False)
            if waves:
                normal = tf.keras.initializers.RandomNormal(stddev=4 * np.pi)  # per unit of place
                shape = [edges.shape[0], waves]
                self._frequencies = self.add_weight("frequencies", shape, initializer=normal)
        self.built = True

    def call(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Encodes numbers: float32 [batch, n * (bins + 2 * waves) + n].

        A bin below a number is 1, one above it is 0, and the bin that has it is the share of the
        bin that is below it. The mean of the bins is the number's place, in [0, 1], and the waves
        are sines and cosines of it. A missing number has zeros; at the end are flags of what is
        missing.
        """
        if self._moments is not None:
            mean, deviation = self._moments[0], self._moments[1]
            scaled = (features[NUMERICS] - mean) / deviation
            return filled_numerics({NUMERICS: scaled})
        if self._edges is None:
            return filled_numerics(features)
        numbers = features[NUMERICS]
        low, high = self._edges[:, :-1], self._edges[:, 1:]
        share = tf.math.divide_no_nan(numbers[:, :, None] - low, high - low)
        is_missing = tf.math.is_nan(numbers)
        share = tf.where(is_missing[:, :, None], tf.zeros_like(share), share)
        share = tf.clip_by_value(share, 0.0, 1.0)
        parts = [flat(share)]
        if self._frequencies is not None:
            place = tf.reduce_mean(share, axis=2, keepdims=True)
            # One product: of two, TensorFlow would fold one where an export has constants.
            angle = place * self._frequencies
            waves = tf.concat([tf.sin(angle), tf.cos(angle)], axis=2)
            parts += [flat(tf.where(is_missing[:, :, None], tf.zeros_like(waves), waves))]
        return tf.concat([*parts, tf.cast(is_missing, tf.float32)], axis=1)


class HiddenLayers(tf.keras.layers.Layer):
    """Dense layers with ReLU, each followed by dropout."""

    def __init__(
        self, units: Sequence[int], *, dropout: float = 0.0, compute_dtype: str = "float32"
    ) -> None:
        """Declares the layers.

        Args:
          units: the number of outputs of each; without any, the output is the input.
          dropout: share of a layer's outputs that a training step drops.
          compute_dtype: as `embedps.layers.dense.MLP` takes it.
        """
        super().__init__(autocast=False)
        # Without dropout between them, the layers are one op.
        parts = [[n] for n in units] if dropout else [list(units)] if units else []
        self._blocks = [
            MLP(part, final_activation="relu", compute_dtype=compute_dtype) for part in parts
        ]
        self._dropout = tf.keras.layers.Dropout(dropout) if dropout else None

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Computes the layers: [batch, n] to [batch, units[-1]]."""
        for block in self._blocks:
            x = block(x)
            if self._dropout is not None:
                x = self._dropout(x, training=training)
        return x
