"""TensorFlow's parameter server tutorial, its custom training loop, with rows of embedps.

The tutorial is https://www.tensorflow.org/tutorials/distribute/parameter_server_training. The lines
that name embedps are ours. TF_CONFIG names the task; `on_this_machine.py` starts them all.
"""

import os
import random
import sys

import tensorflow as tf

import embedps

NUM_EPOCHS, STEPS_PER_EPOCH = 4, int(os.environ.get("STEPS", "50"))
FEATURES = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]

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
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

with strategy.scope():
    feature_lookup = tf.keras.layers.StringLookup(vocabulary=FEATURES, mask_token=None)
    label_lookup = tf.keras.layers.StringLookup(
        vocabulary=["yes", "no"], num_oov_indices=0, mask_token=None
    )
    raw_feature = tf.keras.layers.Input(shape=(3,), dtype=tf.string, name="feature")
    feature_stage = tf.keras.Model({"features": raw_feature}, feature_lookup(raw_feature))
    raw_label = tf.keras.layers.Input(shape=(1,), dtype=tf.string, name="label")
    label_stage = tf.keras.Model({"label": raw_label}, label_lookup(raw_label))


def examples(num_examples: int = 200) -> tf.data.Dataset:
    drawn = [random.sample(FEATURES, 3) for _ in range(num_examples)]
    labels = [["yes"] if "avenger" in features else ["no"] for features in drawn]
    return tf.data.Dataset.from_tensor_slices({"features": drawn, "label": labels})


def dataset_fn(_: tf.distribute.InputContext) -> tf.data.Dataset:
    train = examples().map(
        lambda x: (
            {"features": feature_stage(x["features"])},
            label_stage(x["label"]),
        ),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return train.shuffle(200).batch(32).repeat()


with strategy.scope():
    model_input = tf.keras.layers.Input(shape=(3,), dtype=tf.int64, name="model_input")
    table = embedps.TableSpec(
        name="features", embedding_dim=16, optimizer=embedps.Adagrad(learning_rate=0.3)
    )
    spec = embedps.FeatureSpec(name="features", table=table, ragged=True)
    embedded = embedps.Embeddings([spec]).feature("features")(model_input)
    dense_output = tf.keras.layers.Dense(units=1, activation="sigmoid")(embedded)
    model = tf.keras.Model({"features": model_input}, dense_output)
    optimizer = tf.keras.optimizers.legacy.RMSprop(learning_rate=0.1)
    accuracy = tf.keras.metrics.Accuracy()


@tf.function
def step_fn(iterator):
    def replica_fn(batch_data, labels):
        with tf.GradientTape() as tape:
            pred = model(batch_data, training=True)
            per_example_loss = tf.keras.losses.BinaryCrossentropy(
                reduction=tf.keras.losses.Reduction.NONE
            )(labels, pred)
            loss = tf.nn.compute_average_loss(per_example_loss)
            gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        actual_pred = tf.cast(tf.greater(pred, 0.5), tf.int64)
        accuracy.update_state(labels, actual_pred)
        return loss

    batch_data, labels = next(iterator)
    losses = strategy.run(replica_fn, args=(batch_data, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(dataset_fn)


per_worker_dataset = coordinator.create_per_worker_dataset(per_worker_dataset_fn)
per_worker_iterator = iter(per_worker_dataset)
for epoch in range(NUM_EPOCHS):
    accuracy.reset_states()
    for _ in range(STEPS_PER_EPOCH):
        coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()  # waits for the scheduled functions; raises what they raised
    print(f"epoch {epoch}, accuracy {accuracy.result().numpy():.3f}", flush=True)
loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
print(f"final loss {loss.fetch():.3f}, done {coordinator.done()}", flush=True)
