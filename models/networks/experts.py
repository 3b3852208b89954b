"""MMoE and PLE: experts that several labels share, weighed by a gate per label."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedps.data.dataset_metadata import LabelColumn
from embedps.layers.dense import MLP
from embedps.layers.embeddings import Embeddings

from .parts import HiddenLayers, Numerics
from .tasks import MultiTask


def gated(gate: tf.Tensor, experts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds experts' answers by their shares: logits [batch, n], n of [batch, width]."""
    shares = tf.nn.softmax(gate)
    return tf.add_n([shares[:, i : i + 1] * answer for i, answer in enumerate(experts)])


class _Extraction(tf.keras.layers.Layer):
    """Experts of each label and shared ones, and gates (PLE's "customized gate control")."""

    def __init__(
        self,
        tasks: int,
        *,
        shared: int,
        own: int,
        units: Sequence[int],
        dropout: float,
        is_last: bool,
    ) -> None:
        """Declares the layers.

        Args:
          tasks: how many labels.
          shared: experts of all labels.
          own: experts of each label.
          units: widths of an expert's layers.
          dropout: share of a hidden layer's outputs that a training step drops.
          is_last: no further layer takes what all labels share.
        """
        super().__init__(autocast=False)
        expert = lambda: HiddenLayers(units, dropout=dropout)  # noqa: E731
        self._shared = [expert() for _ in range(shared)]
        self._own = [[expert() for _ in range(own)] for _ in range(tasks)]
        self._gates = [MLP([shared + own]) for _ in range(tasks)]
        self._shared_gate = None if is_last else MLP([shared + tasks * own])

    def call(
        self, inputs: tuple[list[tf.Tensor], tf.Tensor], training: bool = False
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Computes what the next layer takes per label, and what its shared experts take."""
        per_task, common = inputs
        shared = [expert(common, training=training) for expert in self._shared]
        own = [
            [expert(x, training=training) for expert in experts]
            for x, experts in zip(per_task, self._own, strict=True)
        ]
        found = [
            gated(gate(x), [*mine, *shared])
            for x, gate, mine in zip(per_task, self._gates, own, strict=True)
        ]
        if self._shared_gate is not None:
            every = [answer for mine in own for answer in mine]
            common = gated(self._shared_gate(common), [*every, *shared])
        return found, common


class MixtureOfExperts(MultiTask):
    """Predicts several labels; without experts of their own it is MMoE, with them PLE."""

    def __init__(
        self,
        embeddings: Embeddings,
        labels: Sequence[LabelColumn],
        *,
        shared_experts: int,
        own_experts: int,
        layers: int,
        expert_mlp: Sequence[int],
        tower_mlp: Sequence[int],
        dropout: float = 0.0,
        loss_weights: Sequence[float] = (),
        numerics: Numerics,
    ) -> None:
        """Makes the layers.

        Args:
          shared_experts: experts of all labels, per layer.
          own_experts: experts of each label, per layer.
          layers: of experts and gates.
          expert_mlp: widths of an expert's layers.
          tower_mlp: widths of the layers after the gates, per label.
          dropout: share of a hidden layer's outputs that a training step drops.
          loss_weights: of the labels' losses.
          numerics: encodes the numbers.
        """
        super().__init__(labels, loss_weights)
        self.embeddings = embeddings
        self.numerics = numerics
        self.extractions = [
            _Extraction(
                len(self.labels),
                shared=shared_experts,
                own=own_experts,
                units=expert_mlp,
                dropout=dropout,
                is_last=i + 1 == layers,
            )
            for i in range(layers)
        ]
        self.towers = [HiddenLayers(tower_mlp, dropout=dropout) for _ in self.labels]
        self.heads = [MLP([width]) for width in self.widths]

    def answers(self, features: Mapping[str, Any], *, training: bool) -> list[tf.Tensor]:
        """Computes what is predicted per label, float32 [batch, width]."""
        x = tf.concat([self.numerics(features), *self.embeddings(features).values()], axis=1)
        per_task, common = [x] * len(self.labels), x
        for extraction in self.extractions:
            per_task, common = extraction((per_task, common), training=training)
        return [
            head(tower(x, training=training))
            for x, tower, head in zip(per_task, self.towers, self.heads, strict=True)
        ]
