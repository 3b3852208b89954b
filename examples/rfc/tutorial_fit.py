"""TensorFlow's parameter server tutorial, its `Model.fit`, with rows of embedps.

The tutorial is https://www.tensorflow.org/tutorials/distribute/parameter_server_training. The lines
that name embedps are ours. TF_CONFIG names the task; `on_this_machine.py` starts them all. Without
TF_CONFIG it trains in this process. By `Config` and `make`, `embedps serve` and `export` have its
model: `--model tutorial_fit`.

usage: python examples/rfc/tutorial_fit.py DIRECTORY
"""

import dataclasses
import os
import sys

import tensorflow as tf

import embedps

global_batch_size = 64


def dataset_fn(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
    ids = tf.random.uniform((1024,), maxval=50, dtype=tf.int64)
    y = tf.cast(ids % 2, tf.float32)
    dataset = tf.data.Dataset.from_tensor_slices(({"id": ids}, y)).shuffle(1024).repeat()
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.batch(global_batch_size).prefetch(2)


def build() -> tf.keras.Model:
    ids = tf.keras.layers.Input(shape=(), dtype=tf.int64, name="id")
    embedded = embedps.Embeddings({"id": 8}, learning_rate=0.2).feature("id")(ids)
    model = tf.keras.Model(ids, tf.keras.layers.Dense(1)(embedded))
    model.compile(tf.keras.optimizers.legacy.SGD(0.05), loss="mse", steps_per_execution=10)
    return model


@dataclasses.dataclass(frozen=True)
class Config:
    """The model has no options."""


def make(config, dataset):
    return embedps.Recommender(build=build)


def main(directory: str, epochs: int) -> None:
    if "TF_CONFIG" in os.environ:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if resolver.task_type in ("worker", "ps"):
            server = tf.distribute.Server(
                resolver.cluster_spec(),
                job_name=resolver.task_type,
                task_index=resolver.task_id,
                protocol="grpc",
            )
            server.join()
            sys.exit()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
    else:
        strategy = tf.distribute.get_strategy()

    input_options = tf.distribute.InputOptions()
    dataset_creator = tf.keras.utils.experimental.DatasetCreator(dataset_fn, input_options)
    with strategy.scope():
        model = build()

    columns = os.path.join(directory, "columns")
    described = embedps.describe_dataset(columns, dataset_fn(tf.distribute.InputContext()))
    callbacks = [
        tf.keras.callbacks.TensorBoard(log_dir=os.path.join(directory, "logs")),
        tf.keras.callbacks.EarlyStopping("loss", patience=epochs),
        tf.keras.callbacks.BackupAndRestore(backup_dir=os.path.join(directory, "backup")),
        embedps.SaveCheckpoints(os.path.join(directory, "checkpoints"), described),
    ]
    history = model.fit(
        dataset_creator, epochs=epochs, steps_per_epoch=20, callbacks=callbacks, verbose=2
    )
    print("loss", *(f"{loss:.4f}" for loss in history.history["loss"]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], epochs=int(os.environ.get("EPOCHS", "5")))
