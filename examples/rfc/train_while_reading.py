"""Trains by `fit` on a ParameterServerStrategy while a cache follows the rows.

TF_CONFIG names the task; `on_this_machine.py` starts them all. The reader reads checkpoints, so it
may be any process that sees DIRECTORY.

usage: python examples/rfc/train_while_reading.py DIRECTORY
"""

import sys
import threading
from pathlib import Path

import tensorflow as tf

import embedps
from embedps.checkpoint import Reached, Rows


def read_rows(directory: Path) -> None:
    """Follows a run until its last checkpoint."""
    cache: dict[int, list[float]] = {}
    for change in embedps.follow(directory):
        match change:
            case Rows(batch=batch):
                cache |= {row["id"]: row["embedding"] for row in batch.to_pylist()}
            case Reached(step=step):
                print(f"reader: {len(cache)} rows as of step {step}", flush=True)


def dataset_fn(_: tf.distribute.InputContext) -> tf.data.Dataset:
    ids = tf.random.uniform((2048,), maxval=500, dtype=tf.int64)
    labels = tf.cast(ids % 2, tf.float32)
    dataset = tf.data.Dataset.from_tensor_slices(({"id": ids}, labels))
    return dataset.shuffle(2048).repeat().batch(64)


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
        ).join()
    directory = Path(sys.argv[1])
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        ids = tf.keras.layers.Input(shape=(), dtype=tf.int64)
        rows = embedps.Embeddings({"id": 8}, learning_rate=0.2)({"id": ids})["id"]
        model = tf.keras.Model({"id": ids}, tf.keras.layers.Dense(1)(rows))
        model.compile("sgd", "mse", steps_per_execution=10)
    reader = threading.Thread(target=read_rows, args=(directory,))
    reader.start()
    saves = embedps.SaveCheckpoints(directory, every_steps=20)
    batches = tf.keras.utils.experimental.DatasetCreator(dataset_fn)
    model.fit(batches, epochs=3, steps_per_epoch=40, callbacks=[saves], verbose=2)
    reader.join()


if __name__ == "__main__":
    sys.exit(main())
