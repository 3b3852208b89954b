"""Trains a TensorFlow Recommenders model on a ParameterServerStrategy, with rows of embedps.

TF_CONFIG names the task; `on_this_machine.py` starts them all.
"""

import sys

import embedps

import tensorflow as tf  # isort: skip  after embedps, which chooses Keras 2 for TFRS
import tensorflow_recommenders as tfrs  # isort: skip

NUM_USERS, NUM_ITEMS = 200, 100


class TwoTower(tfrs.Model):
    """Finds a user's items by the product of their rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = embedps.Embeddings({"user": 8, "item": 8}, learning_rate=0.2)
        self.task = tfrs.tasks.Retrieval()

    def compute_loss(self, features, training=False):
        found = self.embeddings(features, training=training)
        return self.task(found["user"], found["item"], compute_metrics=False)


def dataset_fn(_: tf.distribute.InputContext) -> tf.data.Dataset:
    """Users like the items that leave the same rest."""
    user = tf.random.uniform((4096,), maxval=NUM_USERS, dtype=tf.int64)
    item = tf.random.uniform((4096,), maxval=NUM_ITEMS // 10, dtype=tf.int64) * 10 + user % 10
    dataset = tf.data.Dataset.from_tensor_slices({"user": user, "item": item})
    return dataset.shuffle(4096).repeat().batch(128, drop_remainder=True)


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
        ).join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = TwoTower()
        model.compile(tf.keras.optimizers.legacy.Adagrad(0.1), steps_per_execution=10)
    batches = tf.keras.utils.experimental.DatasetCreator(dataset_fn)
    history = model.fit(batches, epochs=3, steps_per_epoch=30, verbose=2).history
    print("loss", *(f"{loss:.3f}" for loss in history["loss"]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
