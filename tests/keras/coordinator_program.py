"""Schedules calls by an embedps.Coordinator on the cluster of TF_CONFIG, and prints what came.

usage: python -m tests.keras.coordinator_program
"""

import json
import os
import signal
import time
from typing import Any

import embedps  # first: it chooses Keras 2

import tensorflow as tf  # isort: skip

from tests.keras.servers_program import compiled, creator, layer, message, process_of, resolver


def process_id() -> tf.Tensor:
    return tf.cast(embedps.kernels.load().embedps_process_id(), tf.int64)


def own_table() -> tf.Tensor:
    """Makes a lookup table on the worker."""
    table = tf.raw_ops.MutableHashTableV2(
        key_dtype=tf.int64, value_dtype=tf.int64, container="own", shared_name="table"
    )
    tf.raw_ops.LookupTableInsertV2(
        table_handle=table, keys=tf.constant([7], tf.int64), values=process_id()[None]
    )
    return table


@tf.function
def look(table: tf.Tensor) -> tf.Tensor:
    """Gives what the worker's table has, and the worker."""
    default = tf.constant(-1, tf.int64)
    found = tf.raw_ops.LookupTableFindV2(
        table_handle=table, keys=tf.constant([7], tf.int64), default_value=default
    )
    return tf.concat([found, process_id()[None]], 0)


@tf.function
def fail() -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.Assert(False, ["no such film"])]):
        return tf.constant(0)


def main() -> Any:
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    coordinator = embedps.Coordinator(strategy)
    workers = [process_of("worker", index) for index in range(2)]
    tables = coordinator.create_per_worker(own_table)
    heard: list[Any] = []

    def hear(value: Any) -> None:
        heard.append(message(value.fetch) or value.fetch().tolist())

    def broken(value: Any) -> None:
        raise ValueError("of the callback")

    for index in (0, 1, 1):
        coordinator.schedule(look, (tables,), worker=index).add_done_callback(hear)
    coordinator.join()
    found: dict[str, Any] = {"bound": sorted(heard), "workers": workers, "done": coordinator.done()}

    value = coordinator.schedule(look, (tables,))
    value.add_done_callback(broken)
    coordinator.join()
    value.add_done_callback(hear)  # it has ended
    found["any"] = heard[-1]
    failed = coordinator.schedule(fail)
    failed.add_done_callback(hear)
    found["failed"] = [message(coordinator.join), heard[-1]]

    with strategy.scope():
        began = tf.Variable(0)

    @tf.function
    def stay() -> tf.Tensor:
        began.assign(1)
        while began > 0:
            pass
        return began.read_value()

    ended = [coordinator.schedule(stay, worker=1), coordinator.schedule(look, (tables,), worker=1)]
    while began.numpy() == 0:
        time.sleep(0.01)
    os.kill(workers[1], signal.SIGKILL)
    found["lost"] = [message(each.fetch) for each in ended]
    found["other"] = coordinator.schedule(look, (tables,), worker=0).fetch().tolist()
    found["joined"] = [message(coordinator.join), message(coordinator.join)]
    while message(lambda: coordinator.schedule(look, (tables,), worker=1).fetch()):
        time.sleep(0.05)
    message(coordinator.join)  # raises that the worker was not back
    found["rebuilt"] = coordinator.schedule(look, (tables,), worker=1).fetch().tolist()
    found["mistakes"] = [
        message(lambda: coordinator.schedule(look, (tables,), worker=2)),
        message(lambda: coordinator.schedule(process_id)),
    ]
    with strategy.scope():
        model = compiled(layer())
    fitted = model.fit(creator(), epochs=2, steps_per_epoch=20, verbose=0).history["loss"]
    found["fitted"] = fitted[1] < fitted[0]
    strategy._cluster_coordinator = None
    stock = tf.distribute.coordinator.ClusterCoordinator(strategy)
    found["mistakes"].append(message(lambda: embedps.Coordinator(stock.strategy)))
    return found


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
    os._exit(0)
