"""The tables of an Embeddings layer on the servers of a ParameterServerStrategy, in Keras mode."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from embedps import kernels
from embedps.errors import ClusterError
from embedps.kernels.tasks import check_task, device_of
from embedps.layers import network_messages, scheduled_calls, table_directory
from embedps.layers.own_tables import OwnTables, Rate, Token, mistake
from embedps.tables import message_ops, ops, step_ops
from embedps.tables.activations import Ids
from embedps.tables.lookup_result import LookupResult, ShardRows
from embedps.tables.specs import FeatureSpec, TableSpec

_layers = itertools.count()
_live: weakref.WeakSet[ServerTables] = weakref.WeakSet()


class _Begun(NamedTuple):
    """Holds what a server knows of a step that began, on that server."""

    number: tf.Tensor
    learning_rate: tf.Tensor
    worker: tf.Tensor
    seen: tf.Tensor


class ServerTables(OwnTables):
    """Tables on parameter servers, of a layer that was made in the strategy's scope.

    A lookup that learns costs three messages per server: the ids, the rows and their gradients.
    A server numbers the steps. It applies each step of a scheduled call once, though TensorFlow
    repeats a call whose worker is lost. The repeated call reads other examples.

    The tables belong to the client, which is known by the chief's address: several may have tables
    on the same servers. One that starts again at this address drops those that it had.
    """

    is_remote = True
    strategy: tf.distribute.Strategy

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        learning_rate: Rate,
        strategy: tf.distribute.Strategy,
    ) -> None:
        """Makes empty tables on the strategy's servers.

        Raises:
          ClusterError: a task has no kernels of embedps, or those of another version.
          UsageError: as `OwnTables`, or another layer has a table of this name, but with other
            settings.
        """
        kernels.load()
        for other in _live:
            if other.strategy is strategy:
                _check_same(tables, other.collection.tables)
        self.strategy = strategy
        extended = strategy.extended
        tasks = {"ps": extended._num_ps, "worker": extended._num_workers}
        for task in ((job, index) for job, count in tasks.items() for index in range(count)):
            try:
                check_task(task)
            except ClusterError as error:
                raise mistake(str(error), ClusterError) from error
        servers = [device_of(("ps", index)) for index in range(extended._num_ps)]
        scheduled_calls.watch()
        network_messages.watch(strategy)
        cluster = strategy._cluster_resolver.cluster_spec()
        client = cluster.task_address("chief", 0) if "chief" in cluster.jobs else "unnamed"
        table_directory.drop_earlier(servers, client)
        super().__init__(
            tables,
            features,
            learning_rate,
            devices=servers,
            container=f"embedps-keras-servers-{client}-{next(_layers)}",
        )
        _live.add(self)
        table_directory.publish(self.collection, client)
        weakref.finalize(self, table_directory.withdraw, servers[0], self.collection.container)
        self._on = {  # what each server has, as (group, shard)
            device: [(g, shard) for g in range(len(self.collection.groups))]
            for shard, device in enumerate(servers)
        }

    def num_steps(self) -> int:
        """Counts the lookups that learned, on the first server."""
        device, log = next(iter(self._logs.items()))
        with tf.init_scope(), tf.device(device):
            return int(kernels.load().embedps_steps_numbered(log))

    def set_steps(self, steps: int) -> None:
        """Gives the next step this number, and forgets what was applied."""
        with tf.init_scope():
            self._make_steps()
            for device, log in self._logs.items():
                with tf.device(device):
                    kernels.load().embedps_number_steps(log, tf.constant(steps, tf.int64))

    def note_applied(self) -> None:
        """Does nothing: whether gradients are applied is not known on a cluster."""

    def _make_steps(self) -> None:
        # By name: a new log takes the place of the last one in functions that were traced.
        container = table_directory.steps_container(self.collection.container)
        self._logs: dict[str, tf.Tensor] = {}
        for device in self.collection.devices:
            with tf.device(device):
                kernels.load().embedps_drop_stores(container=container)
                self._logs[device] = step_ops.step_log(container=container, shared_name="steps")

    def _make_rate(self, rate: float) -> tf.Variable:
        # Not by the strategy: in this process, from where each call takes its value.
        with tf.init_scope(), tf.device("/device:CPU:0"):
            return resource_variable_ops.ResourceVariable(
                rate, trainable=False, name="embeddings_rate"
            )

    def _rate_now(self) -> float:
        return 0.0 if self.learning_rate is None else float(self.learning_rate.numpy())

    def _find(self, ids: Mapping[str, Ids], token: Token) -> LookupResult:
        found = self.collection.route(ids, counts=True, partial=True)
        call, rate = scheduled_calls.numbers(self._rate_now, id(self))
        worker = step_ops.task_index()
        shards: dict[tuple[int, int], ShardRows] = {}
        token.begun = {}
        for device, on_device in self._on.items():
            used = [(g, shard) for g, shard in on_device if found.row_splits[g]]
            asked = [found.routed[g].request(shard) for g, shard in used]
            sent = message_ops.send(
                [call, rate, worker, *(t for each in asked for t in each)], device
            )
            arrived = iter(sent)
            call_there, rate_there, worker_there = (next(arrived) for _ in range(3))
            with tf.device(device):
                number = kernels.load().embedps_next_step(
                    self._logs[device], call_there[0], call_there[1]
                )
                if self._schedule is not None:
                    rate_there = tf.cast(self._schedule(number), tf.float32)
                seen = step_ops.steps_seen(self._logs[device], number)
                token.begun[device] = _Begun(number, rate_there, worker_there, seen)
                found_there = [
                    self.collection.lookup_shard(
                        *at,
                        ops.RowPart(*(next(arrived) for _ in part)),
                        insert=True,
                        step=number,
                    )
                    for at, part in zip(used, asked, strict=True)
                ]
                answer = [t for each in found_there for t in (each.rows, each.rates)]
            answered = iter(message_ops.send(answer, None, at=device))
            for at, each in zip(used, found_there, strict=True):
                shards[at] = ShardRows(next(answered), next(answered), each.asked)
        for g, splits in enumerate(found.row_splits):
            found.add([shards[g, s] for s in range(self.collection.num_shards)] if splits else [])
        return found

    def _apply(
        self,
        found: LookupResult,
        gradients: Sequence[Any],
        token: Token,
        features: Collection[str] | None,
    ) -> list[tf.Operation]:
        learning = found.learning(features)
        parts = found.parts(gradients)
        updates = []
        for device, on_device in self._on.items():
            used = [at for at in on_device if at in parts and at in learning]
            if not used:
                continue
            arrived = message_ops.send([parts[at].gradients for at in used], device)
            begun = token.begun[device]
            with tf.device(device):
                is_new = step_ops.step_is_new(self._logs[device], begun.number)
                applied = [
                    self.collection.update_shard(
                        *at,
                        parts[at]._replace(gradients=gradient),
                        learning_rate=begun.learning_rate,
                        step=begun.number,
                        is_new=is_new,
                        learning=learning[at],
                    )
                    for at, gradient in zip(used, arrived, strict=True)
                ]
                with tf.control_dependencies([] if tf.executing_eagerly() else applied):
                    updates.append(
                        step_ops.step_applied(
                            self._logs[device], begun.number, worker=begun.worker, seen=begun.seen
                        )
                    )
        return updates


def _check_same(tables: Sequence[TableSpec], others: Sequence[TableSpec]) -> None:
    """Checks that tables of one name have the same settings.

    Raises:
      UsageError: they have not.
    """
    known = {table.name: table.to_json() for table in others}
    for table in tables:
        ours = table.to_json()
        for name, value in known.get(table.name, ours).items():
            if ours[name] != value:
                raise mistake(
                    f"table {table.name!r} must have the same settings in each embedps.Embeddings "
                    f"of a cluster but has {name} {value} and {ours[name]}: use another name, or "
                    "one layer for all features"
                )
