"""Trains a model in plain tf-keras on 2 parameter servers and 2 workers of a stock cluster.

usage: python -m benchmarks.stock_cluster MODEL DATASET

It prints the examples per second of warm steps. Workers keep the batches in their memory, and run
several steps per call, as `steps_per_execution` of `fit` does.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import tensorflow as tf

from benchmarks.peers.tf_ps import start_cluster
from benchmarks.plain_models import BATCHES, RATE, make_plain, read_columns
from embedps.data.dataset import Dataset

NUM_PS, NUM_WORKERS, STEPS_PER_CALL, BATCHES_READ, SECS = 2, 2, 8, 48, 8.0


def measure(name: str, dataset: Dataset) -> float:
    """Measures a model; examples per second."""
    batch = BATCHES[name]
    columns, sizes = read_columns(dataset, BATCHES_READ * batch)
    batches = tf.data.Dataset.from_tensor_slices(columns).batch(batch, drop_remainder=True)
    sample = next(iter(batches))
    with tempfile.TemporaryDirectory() as folder:
        batches.save(folder)
        strategy = tf.distribute.ParameterServerStrategy(
            start_cluster(num_ps=NUM_PS, num_workers=NUM_WORKERS)
        )
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            model = make_plain(name, dataset, sizes)
            optimizer = tf.keras.optimizers.legacy.Adagrad(RATE)
            model.compute_loss(sample, training=True)  # makes the variables

        def replica(features: dict[str, tf.Tensor]) -> None:
            with tf.GradientTape() as tape:
                loss = model.compute_loss(features, training=True) + sum(model.losses)
            weights = model.trainable_variables
            gradients = tape.gradient(loss, weights)
            pairs = zip(gradients, weights, strict=True)
            optimizer.apply_gradients([pair for pair in pairs if pair[0] is not None])

        @tf.function
        def steps(iterator: tf.data.Iterator) -> None:
            for _ in tf.range(STEPS_PER_CALL):
                strategy.run(replica, args=(next(iterator),))

        def read() -> tf.data.Dataset:
            return tf.data.Dataset.load(folder, batches.element_spec).cache().repeat().prefetch(4)

        iterator = iter(coordinator.create_per_worker_dataset(read))

        def run(calls: int) -> float:
            began = time.monotonic()
            for _ in range(calls):
                coordinator.schedule(steps, args=(iterator,))
            coordinator.join()
            return time.monotonic() - began

        per_epoch = BATCHES_READ // STEPS_PER_CALL
        run(NUM_WORKERS * per_epoch)  # each worker reads its batches once
        calls = NUM_WORKERS * per_epoch
        secs = run(calls)
        if secs < SECS:
            calls = round(calls * SECS / secs)
            secs = run(calls)
    return calls * STEPS_PER_CALL * batch / secs


if __name__ == "__main__":
    print(measure(sys.argv[1], Dataset.open(sys.argv[2])), flush=True)
    os._exit(0)  # the servers end with the pipe on their stdin
