"""A model of several labels: a loss, scores and a prediction per label."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps.data.dataset_metadata import LabelColumn
from embedps.metrics import ClickMetrics

OUTPUTS = {"binary": 1, "number": 1}


class _LabelMetrics(ClickMetrics):
    """The scores of one label among several, such as "like_auc"."""

    def result(self) -> dict[str, Any]:
        return {f"{self.name}_{score}": value for score, value in super().result().items()}


class MultiTask(tfrs.Model):
    """Predicts several labels; a subclass computes `answers`.

    A binary label has log loss, a label of classes has cross-entropy, a number has squared error.
    The losses are added.

    Attributes:
      labels: the labels.
      weight: the column of weights, which multiply the examples' losses; empty if there is none.
    """

    def __init__(self, labels: Sequence[LabelColumn], loss_weights: Sequence[float] = ()) -> None:
        """Declares the labels, and the weights of their losses; by default 1."""
        super().__init__()
        self.labels, self.weight = tuple(labels), ""
        self._loss_weights = tuple(loss_weights) or (1.0,) * len(self.labels)
        kinds = {
            "binary": _LabelMetrics,
            "classes": lambda name: tf.keras.metrics.SparseCategoricalAccuracy(f"{name}_accuracy"),
            "number": lambda name: tf.keras.metrics.RootMeanSquaredError(f"{name}_rmse"),
        }
        self._scores = [kinds[label.kind](label.name) for label in self.labels]

    @property
    def widths(self) -> list[int]:
        """The floats that `answers` gives per label."""
        return [OUTPUTS.get(label.kind, label.classes) for label in self.labels]

    def answers(self, features: Mapping[str, Any], *, training: bool) -> list[tf.Tensor]:
        """Computes what is predicted per label: logits or numbers, float32 [batch, width]."""
        raise NotImplementedError

    def call(self, features: Mapping[str, Any], training: bool = False) -> dict[str, tf.Tensor]:
        """Predicts each label by its name: a probability, one per class, or a number."""
        finish = {"binary": tf.sigmoid, "classes": tf.nn.softmax, "number": tf.identity}
        found = self.answers(features, training=bool(training))
        predicted = {
            label.name: finish[label.kind](answer)
            for label, answer in zip(self.labels, found, strict=True)
        }
        single = [label.name for label in self.labels if label.kind != "classes"]
        return {n: tf.reshape(v, [-1]) if n in single else v for n, v in predicted.items()}

    def compute_loss(self, features: Mapping[str, Any], training: bool = False) -> tf.Tensor:
        """Computes the sum of the labels' mean losses, of examples times their weights."""
        total = tf.zeros([])
        found = self.answers(features, training=training)
        parts = zip(self.labels, found, self._scores, self._loss_weights, strict=True)
        for label, answer, scores, loss_weight in parts:
            wanted = features[label.name]
            if label.kind == "classes":
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, answer)
            else:
                answer = tf.reshape(answer, [-1])
                losses = tf.square(answer - wanted)
                if label.kind == "binary":
                    losses = tf.nn.sigmoid_cross_entropy_with_logits(wanted, answer)
            scores.update_state(wanted, answer)
            if self.weight:
                losses *= features[self.weight]
            total += loss_weight * tf.reduce_mean(losses)
        return total
