"""A model of several labels: a loss, scores and a prediction per label."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps.data.columns import is_present
from embedps.data.dataset_metadata import LabelColumn
from embedps.metrics import ClickMetrics

OUTPUTS = {"binary": 1, "number": 1}


class _LabelMetrics(ClickMetrics):
    """The scores of one label among several, such as "like_auc"."""

    def result(self) -> dict[str, Any]:
        return {f"{self.name}_{score}": value for score, value in super().result().items()}

    def details(self, values: Sequence[Any]) -> dict[str, Any]:
        return {f"{self.name}_{name}": each for name, each in super().details(values).items()}


class _KerasScores(tf.keras.layers.Layer):
    """Keras metrics of a label, and the same of examples times their weights."""

    def __init__(self, kinds: Mapping[str, Any], name: str, weighted: bool) -> None:
        """Makes the metrics: each kind by the end of its name."""
        super().__init__()
        prefixes = ["", "weighted_"] if weighted else [""]
        self._by_prefix = {p: [kinds[n](f"{name}_{p}{n}") for n in kinds] for p in prefixes}

    def update_state(
        self, labels: tf.Tensor, answers: tf.Tensor, weights: Any = None, present: Any = None
    ) -> None:
        """Counts a batch, as ClickMetrics does."""
        there = None if present is None else tf.cast(present, tf.float32)
        if len(answers.shape) == 1:
            labels, answers = labels[:, None], answers[:, None]  # Keras: the last axis is one's
        for prefix, metrics in self._by_prefix.items():
            times = there
            if prefix:
                times = weights if there is None else weights * there
            for metric in metrics:
                metric.update_state(labels, answers, times)


_KERAS_METRICS = {
    "classes": {"accuracy": tf.keras.metrics.SparseCategoricalAccuracy},
    "number": {
        "rmse": tf.keras.metrics.RootMeanSquaredError,
        "mae": tf.keras.metrics.MeanAbsoluteError,
    },
}


class MultiTask(tfrs.Model):
    """Predicts several labels; a subclass computes `answers`.

    A binary label has log loss, a label of classes has cross-entropy, a number has squared error.
    The losses are added. A row without a label counts in its loss as an example of weight 0, and
    not in its scores.

    Attributes:
      labels: the labels.
      weight: the column of weights, of labels that have none of their own; empty if there is none.
    """

    def __init__(self, labels: Sequence[LabelColumn], loss_weights: Sequence[float] = ()) -> None:
        """Declares the labels, and the weights of their losses; by default 1."""
        super().__init__()
        self.labels = tuple(labels)
        self._loss_weights = tuple(loss_weights) or (1.0,) * len(self.labels)
        self.weight = ""
        self._scores: list[Any] = []

    def _scores_of(self, label: LabelColumn) -> Any:
        is_weighted = bool(label.weight or self.weight)
        if label.kind == "binary":
            return _LabelMetrics(label.name, soft=label.soft, weighted=is_weighted)
        return _KerasScores(_KERAS_METRICS[label.kind], label.name, is_weighted)

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
        if not self._scores:
            self._scores = [self._scores_of(label) for label in self.labels]
        total = tf.zeros([])
        found = self.answers(features, training=training)
        parts = zip(self.labels, found, self._scores, self._loss_weights, strict=True)
        for label, answer, scores, loss_weight in parts:
            wanted, present = features[label.name], None
            if label.optional:
                present = is_present(wanted)
                wanted = tf.where(present, wanted, tf.zeros_like(wanted))
            if label.kind == "classes":
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, answer)
            else:
                answer = tf.reshape(answer, [-1])
                losses = tf.square(answer - wanted)
                if label.kind == "binary":
                    losses = tf.nn.sigmoid_cross_entropy_with_logits(wanted, answer)
            weight = label.weight or self.weight
            weights = features[weight] if weight else None
            scores.update_state(wanted, answer, weights, present)
            if present is not None:
                losses = tf.where(present, losses, tf.zeros_like(losses))
            total += loss_weight * tf.reduce_mean(losses if weights is None else losses * weights)
        return total
