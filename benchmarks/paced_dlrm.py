"""DLRM whose training steps take a set time at least: `--model benchmarks.paced_dlrm --pace-ms 40`.

Workers that share a machine's cores hold each other up, as workers on machines of their own do not.
So a step gives its gradients only when so much time has passed since it had its batch. Meanwhile it
computes, and then it uses no core. Many workers fit on a few cores and are equally fast, if the
time is longer than what all of them compute for a step. `--first-pace-ms` paces worker 0 in another
way, so that it can be the slow one. The values are those of `embedps.models.dlrm`, bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedps.config_fields import MAX_SECS, option
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.layers.embeddings import Embeddings
from embedps.models import dlrm
from embedps.models._columns import click_recommender, declare
from embedps.models.networks.dlrm import DLRM
from embedps.tables import step_ops


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(dlrm.Config):
    """DLRM's options, and the pace."""

    pace_ms: float = option(0.0, "least time of a training step", least=0, most=1000 * MAX_SECS)
    first_pace_ms: float = option(
        0.0, "the same of worker 0; 0: as the others", least=0, most=1000 * MAX_SECS
    )


class PacedDLRM(DLRM):
    """DLRM whose training steps give their gradients after a time."""

    def __init__(self, *arguments: Any, pace_ms: float, first_pace_ms: float, **more: Any) -> None:
        """Makes the layers.

        Args:
          arguments, more: those of DLRM.
          pace_ms: from the batch to the gradients.
          first_pace_ms: the same of worker 0.
        """
        super().__init__(*arguments, **more)
        self._pace_us = round(1000 * pace_ms)
        self._first_pace_us = round(1000 * first_pace_ms)

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        """Computes the logits of a batch, float32 [batch]; paces the gradients if it trains."""
        if not training or not (self._pace_us or self._first_pace_us):
            return super().logits(features, training=training)
        with tf.control_dependencies(tf.nest.flatten(dict(features))):
            is_first = tf.equal(step_ops.task_index(), 0)
            slept = sleep(tf.where(is_first, self._first_pace_us, self._pace_us))
        embeddings = list(self.embeddings(features).values())
        weights = self._given_weights()

        @tf.custom_gradient
        def paced(*inputs: tf.Tensor) -> Any:
            vectors = inputs[: len(embeddings)]
            with tf.GradientTape() as tape:
                tape.watch([*vectors, *weights])
                logits = self.combine(vectors, features)

            def gradient(upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()) -> Any:
                found = tape.gradient(logits, [*vectors, *weights, *variables], upstream)
                with tf.control_dependencies([slept, *(g for g in found if g is not None)]):
                    found = [g if g is None else tf.identity(g) for g in found]
                return (found[: len(inputs)], found[len(inputs) :]) if variables else found

            return logits, gradient

        return paced(*embeddings, *weights)

    def _given_weights(self) -> list[tf.Tensor]:
        """Lists the tensors that a worker's layers read instead of their variables."""
        read = [
            (tf.convert_to_tensor(v), tf.convert_to_tensor(v)) for v in self.trainable_variables
        ]
        return [first for first, second in read if first is second]


def sleep(microseconds: tf.Tensor) -> tf.Tensor:
    """Sleeps in the graph and uses no core meanwhile; gives 0 when it is done.

    Args:
      microseconds: a scalar of any integer type.
    """
    # TensorFlow's only op that sleeps is a dataset. It sleeps before each element and before the
    # end, and a dataset of one element is read to its end.
    once = tf.raw_ops.TensorDataset(components=[tf.constant(0)], output_shapes=[[]])
    slow = tf.raw_ops.SleepDataset(
        input_dataset=once,
        sleep_microseconds=tf.cast(microseconds, tf.int64) // 2,
        output_types=[tf.int32],
        output_shapes=[[]],
    )
    (done,) = tf.raw_ops.DatasetToSingleElement(
        dataset=slow, output_types=[tf.int32], output_shapes=[[]]
    )
    return done


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes a paced DLRM over a dataset's columns.

    Raises:
      UsageError: the dataset has no categorical column.
    """
    features = declare(config, dataset.categorical)
    return click_recommender(
        "paced_dlrm",
        config,
        dataset,
        lambda: PacedDLRM(
            Embeddings(features),
            label=dataset.label,
            embedding_dim=config.embedding_dim,
            bottom_mlp=config.bottom_mlp if dataset.numeric else None,
            top_mlp=config.top_mlp,
            compute_dtype=config.compute_dtype,
            pace_ms=config.pace_ms,
            first_pace_ms=config.first_pace_ms or config.pace_ms,
        ),
    )
