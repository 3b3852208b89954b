"""A layer after a model that makes chances of its predictions: of Platt, isotonic, or of a rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embedps.errors import UsageError

if TYPE_CHECKING:  # it is read by commands that do not wait for TensorFlow
    import tensorflow as tf


MAX_KNOTS = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Maps a predicted chance p to another one, and never turns an order around.

    Attributes:
      scale: sigmoid(scale * logit(p) + shift), if there are no knots.
      shift: the same.
      x: knots: chances, each greater than the one before.
      y: what becomes of them; linear between two, constant beyond the ends.
    """

    scale: float = 1.0
    shift: float = 0.0
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        numbers = (self.scale, self.shift, *self.x, *self.y)
        good = all(isinstance(n, int | float) and math.isfinite(n) for n in numbers)
        good = good and self.scale > 0 and len(self.x) == len(self.y) != 1
        good = good and len(self.x) <= MAX_KNOTS
        if good:
            good = all(0 <= n <= 1 for n in (*self.x, *self.y))
            good &= all(a < b for a, b in zip(self.x, self.x[1:], strict=False))
            good &= all(a <= b for a, b in zip(self.y, self.y[1:], strict=False))
        if not good:
            raise UsageError(
                "a calibration's curve must have a scale above 0 and a shift, or at most "
                f"{MAX_KNOTS} knots x that grow and y that do not fall, from 0 to 1"
            )

    def apply(self, chances: tf.Tensor) -> tf.Tensor:
        """Maps chances, float32 of any shape, by stock ops; the bits do not depend on a batch."""
        import tensorflow as tf

        if not self.x:
            logits = tf.math.log(chances) - tf.math.log1p(-chances)
            return tf.sigmoid(self.scale * logits + self.shift)
        flat = tf.reshape(chances, [-1])
        x, y = (tf.constant(each, tf.float32) for each in (self.x, self.y))
        at = tf.searchsorted(x, flat, side="right") - 1
        at = tf.clip_by_value(at, 0, len(self.x) - 2)
        x0, x1, y0, y1 = (tf.gather(v, i) for v in (x, y) for i in (at, at + 1))
        share = tf.clip_by_value((flat - x0) / (x1 - x0), 0.0, 1.0)
        return tf.reshape(y0 + share * (y1 - y0), tf.shape(chances))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """The layer of a model.

    Attributes:
      method: "platt", "isotonic" or "rate".
      curves: by prediction.
      checkpoint: number, step and history of the manifest that it was fitted on; None of a rate,
        which holds for all.
      data: what it was fitted on.
    """

    method: str
    curves: Mapping[str, Curve]
    checkpoint: Mapping[str, Any] | None = None
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def of(self, predictions: Mapping[str, Any]) -> dict[str, Any]:
        """Maps those predictions that have a curve, in a graph."""
        curves = {name: curve.apply for name, curve in self.curves.items()}
        return {n: curves[n](p) if n in curves else p for n, p in predictions.items()}

    def describe(self) -> str:
        """Says what it is, and of what."""
        if self.checkpoint is None:
            return f"calibrated for a share of negatives of {self.data.get('negative_rate')}"
        return (
            f"calibrated ({self.method}, fitted on checkpoint {self.checkpoint['number']} and "
            f"{self.data['examples']:,} examples of {self.data['directory']} {self.data['split']})"
        )
