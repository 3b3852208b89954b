"""What is scheduled: the training of a unit, the scoring of a unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from embedps.console.tf_logging import own_words
from embedps.data.unit_reader import Batch, UnitReader
from embedps.engine.recommender import Recommender
from embedps.engine.step_exchange import StepInputs, make_step_exchange
from embedps.errors import DatasetError, ServerLostError
from embedps.metrics import Counts, count, zero_counts
from embedps.tables.collection import EmbeddingCollection

UnitFunction = Callable[..., Counts]


def make_train_unit(
    recommender: Recommender,
    network: tf.keras.Model,
    optimizer: Any,
    collection: EmbeddingCollection,
    strategy: tf.distribute.Strategy,
    unit_input: UnitReader,
    *,
    overlap: bool,
) -> UnitFunction:
    """Makes the function that trains on a unit.

    It loops over the unit's batches in one call: a call a step was measured at 0.77 of the
    throughput. Each step looks rows up on their shards, runs the network forward and backward,
    and applies the rows' summed gradients and the network's; workers do not wait for each other.
    With `overlap`, a step of a cluster begins before the one before it ends, so that the worker
    computes while the servers look up: what it gets lacks the gradients of that one step, besides
    those that other workers are about to send. The first step of a turn begins after all of them.

    Args:
      recommender: the columns and tables.
      network: the dense network, made in the strategy's scope.
      optimizer: a Keras optimizer of the network's variables, its own variables made.
      collection: the tables.
      strategy: the cluster's.
      unit_input: how a unit is read.
      overlap: ask for the next step's rows and variables while a step computes; it changes nothing
        in one process.

    Returns:
      A tf.function of (path string, first_row, num_rows, seed, first_step: int64 scalars,
      learning_rate float32 scalar) that returns the Counts of the predictions made before each
      update.
    """
    exchange = make_step_exchange(
        network, optimizer, collection, wire_dtype=tf.as_dtype(recommender.wire_dtype)
    )

    def train(batch: Batch, begun: StepInputs) -> Counts:
        with exchange.computing(begun), tf.GradientTape() as tape:
            watched = (begun.looked.rows, begun.weights)
            tape.watch(watched)
            embeddings = collection.combine(begun.looked)
            logits = recommender.logits(network, batch.numerics, embeddings, training=True)
            loss = recommender.loss(network, batch.labels, logits)
        exchange.end(begun, *tape.gradient(loss, watched))
        return count(batch.labels, logits)

    steps_ahead = 1 if overlap else 0

    def turn(batches: list[Batch], first_step: tf.Tensor, learning_rate: tf.Tensor) -> Counts:
        counts = zero_counts()
        begun: list[StepInputs] = []
        for k, batch in enumerate(batches):
            for j in range(len(begun), min(k + steps_ahead + 1, len(batches))):
                begun.append(
                    exchange.begin(
                        batches[j].ids, number=first_step + j, learning_rate=learning_rate
                    )
                )
            counts = counts.plus(train(batch, begun[k]))
        return counts

    @tf.function
    def train_unit(
        path: tf.Tensor,
        first_row: tf.Tensor,
        num_rows: tf.Tensor,
        seed: tf.Tensor,
        first_step: tf.Tensor,
        learning_rate: tf.Tensor,
    ) -> Counts:
        reader = unit_input.open(path, first_row, num_rows, seed)
        counts = zero_counts()
        num_batches = -(-num_rows // unit_input.batch_rows)
        num_whole = num_batches // exchange.steps_per_iteration * exchange.steps_per_iteration
        # Several steps a turn of the loop: a turn costs messages to and from each server.
        for i in tf.range(0, num_whole, exchange.steps_per_iteration):
            batches = [unit_input.next(reader) for _ in range(exchange.steps_per_iteration)]
            more = strategy.run(turn, args=(batches, first_step + i, learning_rate))
            counts = counts.plus(more)
        if exchange.steps_per_iteration > 1:
            for i in tf.range(num_whole, num_batches):
                batches = [unit_input.next(reader)]
                more = strategy.run(turn, args=(batches, first_step + i, learning_rate))
                counts = counts.plus(more)
        return counts

    return train_unit  # type: ignore[no-any-return]


def make_eval_unit(
    recommender: Recommender,
    network: tf.keras.Model,
    collection: EmbeddingCollection,
    unit_input: UnitReader,
) -> UnitFunction:
    """Makes the function that scores a unit; it creates no rows and changes nothing.

    Returns:
      A tf.function of (path string, first_row, num_rows: int64 scalars) that returns its Counts.
    """

    @tf.function
    def eval_unit(path: tf.Tensor, first_row: tf.Tensor, num_rows: tf.Tensor) -> Counts:
        reader = unit_input.open(path, first_row, num_rows)
        counts = zero_counts()
        num_batches = -(-num_rows // unit_input.batch_rows)
        for _ in tf.range(num_batches):
            batch = unit_input.next(reader)
            looked = collection.lookup(batch.ids, insert=False)
            embeddings = collection.combine(looked)
            logits = recommender.logits(network, batch.numerics, embeddings, training=False)
            counts = counts.plus(count(batch.labels, logits))
        return counts

    return eval_unit  # type: ignore[no-any-return]


def explain(error: BaseException) -> BaseException:
    """What a unit's failure means to the user."""
    # Cancelled: what was running beside the function that met the loss.
    lost = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    if isinstance(error, lost) or cluster_coordinator._is_ps_failure(error):
        why = own_words(str(getattr(error, "message", error)))[:200] or type(error).__name__
        return ServerLostError(f"a parameter server is not there any more ({why})")
    wrong = tf.errors.DataLossError | tf.errors.NotFoundError | tf.errors.InvalidArgumentError
    if isinstance(error, wrong) and ".parquet" in error.message:
        return DatasetError(f"{own_words(error.message)}: make the dataset again")
    if isinstance(error, tf.errors.DataLossError | tf.errors.NotFoundError):
        return DatasetError(own_words(error.message))
    return error
