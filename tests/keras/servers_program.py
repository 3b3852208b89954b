"""Runs stock programs on the cluster of TF_CONFIG and prints what they found as JSON.

usage: python -m tests.keras.servers_program CASE DIRECTORY
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import embedps  # first: it chooses Keras 2

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip


from embedps.cluster.coordinator import CoordinatorCluster
from embedps.kernels.tasks import check_task, device_of
from embedps.layers import table_directory
from tests.keras.models import MODELS, features

NUM_IDS, DIM, RATE = 40, 4, 0.1
KEPT: list[Any] = []  # until the program ends


def resolver() -> tf.distribute.cluster_resolver.ClusterResolver:
    return tf.distribute.cluster_resolver.TFConfigClusterResolver()


def layer(others: Sequence[embedps.FeatureSpec] = (), **options: Any) -> embedps.Embeddings:
    table = embedps.TableSpec(
        name="id",
        embedding_dim=DIM,
        optimizer=embedps.Adagrad(),
        initializer=embedps.Initializer(low=0.25),
        **options,
    )
    spec = embedps.FeatureSpec(name="id", table=table)
    return embedps.Embeddings([*others, spec], learning_rate=RATE)


def model_of(rows: Any) -> tf.keras.Model:
    ids = tf.keras.layers.Input(shape=(), dtype=tf.int64)
    dense = tf.keras.layers.Dense(1, kernel_initializer=tf.keras.initializers.Constant(0.5))
    return tf.keras.Model({"id": ids}, dense(rows({"id": ids})["id"]))


def compiled(rows: Any, **options: Any) -> tf.keras.Model:
    model = model_of(rows)
    model.compile(tf.keras.optimizers.Adagrad(RATE), loss="mse", metrics=["mae"], **options)
    return model


def batches(_: Any = None, *, weights: bool = False) -> tf.data.Dataset:
    # Each id as often, and early: two workers that share an epoch may see its first half only.
    ids = np.random.default_rng(9).permutation(np.arange(640) % NUM_IDS)
    columns: tuple[Any, ...] = ({"id": ids}, (ids % 3).astype(np.float32))
    if weights:
        columns += (tf.ones_like(columns[1]),)
    return tf.data.Dataset.from_tensor_slices(columns).batch(32).repeat()


def creator(**options: Any) -> Any:
    return tf.keras.utils.experimental.DatasetCreator(lambda context: batches(context, **options))


def message(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# ---- cases -----------------------------------------------------------------------------------


class PlainRows(tf.keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        constant = tf.keras.initializers.Constant(0.25)
        self.rows = tf.keras.layers.Embedding(NUM_IDS, DIM, embeddings_initializer=constant)

    def call(self, batch: Any) -> Any:
        return {"id": self.rows(batch["id"])}


def losses_of(
    strategy: Any, kind: Any, rows: Callable[[], Any], call: Callable[..., Any]
) -> tuple[list[float], dict[str, Any]]:
    """Takes 50 steps, two in each call; tells their losses, and of a call how it exchanges."""
    traced: dict[str, Any] = {}
    with strategy.scope():
        model = model_of(rows())
        optimizer = kind(RATE)

    @tf.function
    def step(iterator: Any) -> Any:
        def replica(batch: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(batch, training=True)[:, 0] - labels) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        losses = [strategy.run(replica, args=next(iterator)) for _ in range(2)]
        graph = tf.compat.v1.get_default_graph()
        known = graph.capture(model.layers[-1].kernel.handle).consumers()
        values = [op.outputs[0] for op in known if op.type == "ReadVariableOp"]
        traced["uses"] = [sorted({op.type for op in value.consumers()}) for value in values]
        made = graph.get_operations()
        traced["messages"] = sum(op.type == "EmbedpsPack" for op in made)
        traced["told"] = sorted({op.device for op in made if op.name.endswith("group_deps")})
        return tf.stack(losses)

    return [float(loss) for _ in range(25) for loss in call(step)], traced


def equality(_: Path) -> Any:
    """50 steps of one worker and one server, and of plain Keras, by each kind of optimizer."""
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    found: list[dict[str, Any]] = []
    for kind in (tf.keras.optimizers.Adagrad, tf.keras.optimizers.legacy.Adagrad):
        read, own = iter(coordinator.create_per_worker_dataset(batches)), iter(batches())

        def schedule(step: Any, read: Any = read) -> Any:
            return coordinator.schedule(step, (read,)).fetch()

        cluster, traced = losses_of(strategy, kind, layer, schedule)
        local = tf.distribute.get_strategy()
        plain, _traced = losses_of(local, kind, PlainRows, lambda step, own=own: step(own))
        found.append({"cluster": cluster, "plain": plain, **traced})
    return found


def fit(directory: Path) -> Any:
    """What `fit`, `evaluate` and `predict` are given."""
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    with strategy.scope():
        rows = layer()
        model = compiled(rows, steps_per_execution=5)
    model.fit(creator(weights=True), epochs=1, steps_per_epoch=5, verbose=0)
    callbacks = [
        tf.keras.callbacks.TensorBoard(str(directory / "logs")),
        tf.keras.callbacks.EarlyStopping("val_loss", patience=4),
        tf.keras.callbacks.BackupAndRestore(str(directory / "backup")),
        tf.keras.callbacks.ModelCheckpoint(str(directory / "weights"), save_weights_only=True),
        embedps.SaveCheckpoints(directory / "run"),
    ]
    history = model.fit(
        creator(), epochs=3, steps_per_epoch=20, callbacks=callbacks, verbose=0,
        validation_data=creator(), validation_steps=5, class_weight={0: 1.0, 1: 1.0, 2: 2.0},
    ).history  # fmt: skip
    lines: list[str] = []
    scores = model.evaluate(creator(), steps=20, verbose=0)
    model.summary(print_fn=lines.append)
    ids = np.arange(NUM_IDS + 1)
    predicted = model.predict({"id": ids}, verbose=0)[:, 0].tolist()
    before = rows({"id": tf.constant(ids)})["id"].numpy()
    rows.own.write_image(np.zeros([0], np.uint8))
    cleared = sum(rows.own.collection.stats().rows.values())
    model.load_weights(str(directory / "weights"))
    return {
        "history": history,
        "scores": scores,
        "predicted": predicted,
        "summary": lines,
        "steps": rows.own.num_steps(),
        "cleared": cleared,
        "moved": float(np.abs(rows({"id": tf.constant(ids)})["id"].numpy() - before).max()),
    }


def partitioned(directory: Path) -> Any:
    """Trains with variables that are partitioned over the servers; restores and saves them."""
    parts = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = tf.distribute.ParameterServerStrategy(resolver(), variable_partitioner=parts)
    with strategy.scope():
        model = compiled(layer(), steps_per_execution=5)
    model({"id": tf.zeros([1], tf.int64)})
    kernel, begun = model.layers[-1].kernel, list[Any]()
    model.fit(
        creator(), epochs=1, steps_per_epoch=20, verbose=0,
        callbacks=[
            embedps.SaveCheckpoints(directory / "run"),
            tf.keras.callbacks.LambdaCallback(
                on_train_begin=lambda logs: begun.append(kernel.numpy().tolist())
            ),
        ],
    )  # fmt: skip
    return {
        "parts": [
            [*part.shape, int(part.device.split("task:")[1][0])] for part in kernel.variables
        ],
        "begun": begun[0],
        "kernel": kernel.numpy().tolist(),
    }


def served(directory: Path) -> Any:
    """Trains a model of a dataset, which others load and serve."""
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    with strategy.scope():
        model = MODELS["dlrm"](embedps.Embeddings(features(), learning_rate=RATE))
        model.compile(tf.keras.optimizers.Adagrad(RATE), steps_per_execution=4)
    data = directory / "data"

    def read(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return embedps.read(
            data, batch_size=64, unit_rows=256, targets=False, seed=context.input_pipeline_id
        ).repeat()

    saves = embedps.SaveCheckpoints(directory / "run", data, every_steps=16)
    reads = tf.keras.utils.experimental.DatasetCreator(read)
    model.fit(reads, epochs=2, steps_per_epoch=32, callbacks=[saves], verbose=0)
    batch = next(iter(embedps.read(data, "eval", batch_size=8, unit_rows=8, targets=False)))
    return {name: np.ravel(each).tolist() for name, each in model(batch).items()}


def resume(directory: Path) -> Any:
    """Restores a run's checkpoint onto the servers that there are."""
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    with strategy.scope():
        rows = layer()
        model = compiled(rows)
    model({"id": tf.zeros([1], tf.int64)})
    model.fit(
        creator(), epochs=1, steps_per_epoch=1, verbose=0,
        callbacks=[embedps.SaveCheckpoints(directory / "run")],
    )  # fmt: skip
    found = {"steps": rows.own.num_steps(), "shards": rows.own.collection.num_shards}
    for _ in range(2):
        rows.own.write_image(np.zeros([0], np.uint8))  # steps have their first numbers again
        model.fit(creator(), epochs=1, steps_per_epoch=5, verbose=0)
    learned = np.ptp(rows({"id": tf.range(NUM_IDS, dtype=tf.int64)})["id"].numpy())
    return found | {"steps again": rows.own.num_steps(), "learned": float(learned)}


def mistakes(_: Path) -> Any:
    """The errors of users."""
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    outside = layer()
    with strategy.scope():
        first, other = layer(), layer(seed=3)

    def fit_outside() -> None:
        with strategy.scope():
            model = compiled(outside)
        model.fit(creator(), steps_per_epoch=1, verbose=0)

    used = {"id": tf.zeros([1], tf.int64)}
    first(used, training=True)
    ended = iter(coordinator.create_per_worker_dataset(lambda: batches().take(2)))

    @tf.function
    def take(iterator: Any) -> Any:
        return next(iterator)[1]

    @tf.function
    def no_tensor() -> Any:
        return object()

    def end() -> None:
        for _ in range(20):
            coordinator.schedule(take, (ended,))
        coordinator.join()

    return {
        "outside": message(fit_outside),
        "settings": message(lambda: other(used, training=True)),
        "ended": message(end),
        "no tensor": message(lambda: coordinator.schedule(no_tensor)),
    }


def policies(_: Path) -> Any:
    """Admits by the second example, evicts by age, and tells rates, over two groups of tables."""
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    table = embedps.TableSpec(
        name="id",
        embedding_dim=DIM,
        admission=embedps.MinCount(count=2),
        eviction=(embedps.TimeToLive(steps=20),),
    )
    with strategy.scope():
        rows = embedps.Embeddings(
            [
                embedps.FeatureSpec(name="id", table=table, rate_as="rate"),
                embedps.FeatureSpec(
                    name="other", table=embedps.TableSpec(name="b", embedding_dim=2)
                ),
            ]
        )

    @tf.function
    def learn(ids: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            found = rows({"id": ids, "other": ids}, training=True)
            loss = tf.reduce_sum(found["id"])  # the rows of "b" get no gradient
        tape.gradient(loss, rows.trainable_variables)
        return loss

    for ids in [[1, 2], [1, 3], [1, 3], *([[1, 4]] * 40)]:
        coordinator.schedule(learn, (tf.constant(ids, tf.int64),)).fetch()
    tables = rows.own.collection
    tables.sweep()
    rates = rows({"id": tf.constant([1, 4], tf.int64)})["rate"].numpy()
    return {
        "ids": sorted(tables.ids("id").tolist()),
        "aged": tables.eviction_stats()["id"]["age"],
        "rates": rates.tolist(),
        "admitted": tables.admission_stats()["id"].admitted,
        "waiting": tables.admission_stats()["id"].counters,
    }


def process_of(job: str, index: int) -> int:
    with tf.device(device_of((job, index))):
        return int(embedps.kernels.load().embedps_process_id())


def fit_and_kill(directory: Path, job: str, epochs: int) -> Any:
    """Fits, saves after each epoch, and kills a task after the second."""
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    with strategy.scope():
        rows = layer()
        model = compiled(rows)
    pid = process_of(job, 1)

    def kill(epoch: int, logs: Any) -> None:
        if epoch == 1:
            os.kill(pid, signal.SIGKILL)

    callbacks = [
        embedps.SaveCheckpoints(directory / "run"),
        tf.keras.callbacks.LambdaCallback(on_epoch_end=kill),
    ]
    options = {"epochs": epochs, "steps_per_epoch": 20, "callbacks": callbacks, "verbose": 0}
    error = message(lambda: model.fit(creator(), **options))
    return {"error": error} if error else {"steps": rows.own.num_steps()}


def fit_without_a_worker(directory: Path) -> Any:
    return fit_and_kill(directory, "worker", 4)


def fit_without_a_server(directory: Path) -> Any:
    return fit_and_kill(directory, "ps", 9)


def loop_without_a_server(_: Path) -> Any:
    """Schedules functions until a server is killed."""
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        rows = layer()

    @tf.function
    def learn() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(rows({"id": tf.range(4, dtype=tf.int64)}, training=True)["id"])
        tape.gradient(loss, rows.trainable_variables)
        return loss

    coordinator.schedule(learn).fetch()
    os.kill(process_of("ps", 1), signal.SIGKILL)

    def go_on() -> None:
        for _ in range(20):
            coordinator.schedule(learn)
        coordinator.join()

    return {"error": message(go_on)}


def foreign(_: Path) -> Any:
    """Connects to tasks that do not have what this process has."""
    engine = message(
        lambda: CoordinatorCluster(resolver(), server_timeout_secs=60.0, wait_secs=60.0)
    )
    with tf.distribute.ParameterServerStrategy(resolver()).scope():
        used = layer()
    return {
        "engine": engine,
        "layer": message(lambda: used({"id": tf.zeros([1], tf.int64)}, training=True)),
        "worker": message(lambda: check_task(("worker", 0))),
    }


def kills(_directory: Path) -> Any:
    """Counts what rows learn if workers are killed: a row's value is how often it learned."""
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    table = embedps.TableSpec(
        name="id",
        embedding_dim=DIM,
        optimizer=embedps.SGD(),
        initializer=embedps.Initializer(),
    )
    with strategy.scope():
        spec = embedps.FeatureSpec(name="id", table=table)
        rows = embedps.Embeddings([spec], learning_rate=1.0)
    ids = tf.range(NUM_IDS, dtype=tf.int64)
    steps_per_call, num_calls = 200, 6
    pids = [process_of("worker", index) for index in range(2)]

    @tf.function
    def learn() -> Any:
        for _ in tf.range(steps_per_call):
            with tf.GradientTape() as tape:
                loss = -tf.reduce_sum(rows({"id": ids}, training=True)["id"])
            tape.gradient(loss, rows.trainable_variables)
        return loss

    def learned() -> list[float]:
        return sorted(set(rows({"id": ids})["id"].numpy().ravel().tolist()))

    with strategy.scope():
        rows({"id": ids})  # makes the tables, to be watched
    for _ in range(num_calls):
        coordinator.schedule(learn)
    for after, pid in zip((steps_per_call // 2, steps_per_call * 3), pids, strict=True):
        while learned()[0] < after:  # then calls are half done
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
    coordinator.join()
    return {"learned": learned(), "steps": steps_per_call * num_calls}


def beside(directory: Path) -> Any:
    """Trains while another client trains a table of the same name, and a third one reads both."""
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    fields: dict[str, dict[str, Any]] = {  # each in a group of its own
        "fast": {"optimizer": embedps.Adagrad(learning_rate=2 * RATE)},
        "still": {"optimizer": embedps.Adagrad(), "trainable": False},
    }
    others = [
        embedps.FeatureSpec(
            name=name, table=embedps.TableSpec(name=name, embedding_dim=DIM, **fields[name])
        )
        for name in fields
    ]
    with strategy.scope():
        rows = layer(others)
    ids = dict.fromkeys(("fast", "still", "id"), tf.range(4, dtype=tf.int64))

    def learn() -> list[float]:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(each) for each in rows(ids).values()])
        tape.gradient(loss, rows.trainable_variables)
        return rows(ids)["id"].numpy()[:, 0].tolist()

    def start(case: str, chief: str) -> subprocess.Popen[str]:
        config = json.loads(os.environ["TF_CONFIG"])
        config["cluster"]["chief"] = [chief]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.keras.servers_program", case, directory],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"TF_CONFIG": json.dumps(config)},
        )  # fmt: skip

    first = learn()
    with socket.create_server(("127.0.0.1", 0)) as free:
        other = f"127.0.0.1:{free.getsockname()[1]}"
    start("killed_client", other).communicate()
    output, _ = start("other_client", other).communicate()
    entries = table_directory.published(device_of(("ps", 0)))
    chief = resolver().cluster_spec().task_address("chief", 0)
    with start("reader", chief) as reader:
        assert reader.stdout is not None
        read = json.loads(reader.stdout.readline())
        second = learn()
        output_after, _ = reader.communicate("go on\n")
    return {
        "trained": [first, second],
        "read": [read, json.loads(output_after)],
        "other": json.loads(output),
        "entries": sum(entry["client"] == other for entry in entries),
        "rows": rows.own.collection.stats().rows,
        "steps": rows.own.num_steps(),
    }


def killed_client(_: Path) -> Any:
    """Makes two layers, which it cannot take back."""
    with tf.distribute.ParameterServerStrategy(resolver()).scope():
        KEPT.append([layer(seed=3), layer(seed=3)])
    os.kill(os.getpid(), signal.SIGKILL)


def other_client(_: Path) -> Any:
    """Trains a table of its own, which stays on the servers."""
    with tf.distribute.ParameterServerStrategy(resolver()).scope():
        rows = layer(seed=3)
    rows({"id": tf.constant([7, 8], tf.int64)}, training=True)
    KEPT.append(rows)
    return rows.own.collection.stats().rows


def reader(_: Path) -> Any:
    """Reads the tables of the client of TF_CONFIG, before and after a line of input."""
    cluster = resolver().cluster_spec().as_dict()
    chief, servers = cluster["chief"][0], cluster["ps"]
    several = embedps.connect(servers)
    live = embedps.connect(servers, client=chief)
    found = {
        "tables": [table.name for table in live.tables],
        "ids": sorted(live.ids("id").tolist()),
        "rows": live.lookup("id", [[0, 1], [2, 3]])[:, :, 0].ravel().tolist(),
        "absent": live.lookup("id", [99]).tolist(),
        "several": message(lambda: several.lookup("id", [0])),
        "unknown": message(lambda: live.lookup("none", [0])),
        "nobody": message(lambda: embedps.connect(servers, client="nobody:1")),
        "strategy": message(lambda: embedps.connect(servers[:1])),
    }
    print(json.dumps(found), flush=True)
    sys.stdin.readline()
    return live.lookup("id", range(4))[:, 0].tolist()


CASES = {
    case.__name__: case
    for case in (
        equality, fit, partitioned, served, policies, resume, mistakes, foreign, kills,
        fit_without_a_worker, fit_without_a_server, loop_without_a_server,
        beside, killed_client, other_client, reader,
    )
}  # fmt: skip


def main(case: str, directory: str) -> None:
    print(json.dumps(CASES[case](Path(directory))))
    sys.stdout.flush()
    os._exit(0)  # what waits for servers that were killed need not end


if __name__ == "__main__":
    main(*sys.argv[1:])
