"""Trains a model by TensorFlow's own programs on 2 parameter servers and 2 workers.

usage: python -m benchmarks.stock_cluster MODEL DATASET [ROWS PROGRAM STEPS_PER_CALL]

It prints the examples per second of warm steps. ROWS are of "keras", in one variable per table;
"partitioned", in parts of variables on all servers; or of "embedps". The rest of the model is the
same, of stock ops; a "model" of embedps has its layers too. PROGRAM is a "loop" of scheduled
functions, or "fit". Workers keep the batches in their memory, and run several steps per call.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import tensorflow as tf

from benchmarks.peers.tf_ps import start_cluster
from benchmarks.plain_models import BATCHES, RATE, make_ours, make_plain, read_columns
from embedps.cluster.local_processes import LocalProcesses
from embedps.data.dataset import Dataset

NUM_PS, NUM_WORKERS, STEPS_PER_CALL, BATCHES_READ, SECS = 2, 2, 8, 48, 8.0
OURS = ("embedps", "model")
_MIN_PART_BYTES = 256 << 10  # as TensorFlow's tutorial


def measure(
    name: str,
    dataset: Dataset,
    rows: str = "keras",
    program: str = "loop",
    steps_per_call: int = STEPS_PER_CALL,
) -> float:
    """Measures a model; examples per second."""
    batch = BATCHES[name]
    columns, sizes = read_columns(dataset, BATCHES_READ * batch)
    batches = tf.data.Dataset.from_tensor_slices(columns).batch(batch, drop_remainder=True)
    sample = next(iter(batches))
    with tempfile.TemporaryDirectory() as folder:
        batches.save(folder)
        strategy = _strategy(rows, Path(folder))
        with strategy.scope():
            if rows in OURS:
                model = make_ours(name, dataset, stock=rows == "embedps")
            else:
                model = make_plain(name, dataset, sizes)
            model.compute_loss(sample, training=True)  # makes the variables

        def read(_: Any = None) -> tf.data.Dataset:
            return tf.data.Dataset.load(folder, batches.element_spec).cache().repeat().prefetch(4)

        run = {"loop": _loop, "fit": _fit}[program](model, strategy, read, steps_per_call)
        # Each worker reads its batches once.
        calls = NUM_WORKERS * -(-BATCHES_READ // steps_per_call)
        run(calls)
        secs = run(calls)
        if secs < SECS:
            calls = round(calls * SECS / secs)
            secs = run(calls)
    return calls * steps_per_call * batch / secs


def _strategy(rows: str, folder: Path) -> tf.distribute.Strategy:
    partitioners = tf.distribute.experimental.partitioners
    if rows not in OURS:
        return tf.distribute.ParameterServerStrategy(
            start_cluster(num_ps=NUM_PS, num_workers=NUM_WORKERS),
            partitioners.MinSizePartitioner(_MIN_PART_BYTES, max_shards=NUM_PS)
            if rows == "partitioned"
            else None,
        )
    processes = LocalProcesses(
        num_ps=NUM_PS, num_workers=NUM_WORKERS, log_dir=folder / "logs", grace_secs=1
    )
    processes.wait_until_serving(120)
    spec = tf.train.ClusterSpec(processes.cluster)
    return tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            spec, task_type="chief", task_id=0, rpc_layer="grpc"
        )
    )


def _loop(
    model: Any, strategy: Any, read: Callable[..., Any], steps_per_call: int
) -> Callable[[int], float]:
    """Gives a function that schedules calls, and how many seconds they took."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        optimizer = tf.keras.optimizers.legacy.Adagrad(RATE)

    def replica(features: dict[str, tf.Tensor]) -> None:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(features, training=True) + sum(model.losses)
        weights = model.trainable_variables
        gradients = tape.gradient(loss, weights)
        pairs = zip(gradients, weights, strict=True)
        optimizer.apply_gradients([pair for pair in pairs if pair[0] is not None])

    @tf.function
    def steps(iterator: tf.data.Iterator) -> None:
        for _ in tf.range(steps_per_call):
            strategy.run(replica, args=(next(iterator),))

    iterator = iter(coordinator.create_per_worker_dataset(read))

    def run(calls: int) -> float:
        began = time.monotonic()
        for _ in range(calls):
            coordinator.schedule(steps, args=(iterator,))
        coordinator.join()
        return time.monotonic() - began

    return run


def _fit(
    model: Any, strategy: Any, read: Callable[..., Any], steps_per_call: int
) -> Callable[[int], float]:
    """As `_loop`, by `fit`."""
    with strategy.scope():
        model.compile(tf.keras.optimizers.legacy.Adagrad(RATE), steps_per_execution=steps_per_call)
    batches = tf.keras.utils.experimental.DatasetCreator(read)
    ends: list[float] = []

    def run(calls: int) -> float:
        class Clock(tf.keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                ends.append(time.monotonic())

        # The second epoch: the first makes the iterators anew, and reads.
        model.fit(
            batches, epochs=2, steps_per_epoch=calls * steps_per_call, callbacks=[Clock()],
            verbose=0,
        )  # fmt: skip
        return ends[-1] - ends[-2]

    return run


if __name__ == "__main__":
    name, data, *how = sys.argv[1:]
    rows, program, steps = how or ("keras", "loop", STEPS_PER_CALL)
    print(measure(name, Dataset.open(data), rows, program, int(steps)), flush=True)
    os._exit(0)  # the servers end with this process
