"""Steps that do not wait for slow or lost workers, beside NumPy, for test_group_exchange.py.

A program of its own, as sync_program.py. Each batch waits in the model until the test releases it,
so the parts arrive in the order of a script.
"""

from __future__ import annotations

import copy
import math
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf

from benchmarks import row_visits
from embedps.cluster.interface import ScheduledCall
from embedps.cluster.local_cluster import LocalCluster
from embedps.engine.recommender import Recommender
from embedps.engine.steps.ways import SyncMode
from embedps.tables import step_ops
from tests.engine.sync_program import BATCH, RATE, START, InStep, Line, Twin, wait_for
from tests.tables.builders import rows_of

UNITS = {"A": 0, "B": 8, "C": 16}  # of 8 rows, by name the first
NUM_BATCHES = 4
SERVER = "/job:ps/replica:0/task:0"
SCRIPT = ["A0", "B0", "C0", "A1", "C1", "B1", "B2", "A2", "C2", "C3", "A3", "B3"]


class Gates:
    """Holds each batch, named by its first row, between its read and its gradients."""

    def __init__(self, name: str) -> None:
        with tf.device(SERVER):
            self._arrived, self._open = (
                step_ops.step_log(container="test-gates", shared_name=f"{name}-{kind}")
                for kind in ("arrived", "open")
            )

    def hold(self, row: tf.Tensor) -> tf.Tensor:
        """Waits in a worker's graph."""
        zero = tf.zeros([], tf.int64)
        with tf.device(SERVER):
            arrived = step_ops.step_applied(self._arrived, row, worker=zero, seen=zero)
            with tf.control_dependencies([arrived]):
                return step_ops.await_step(self._open, row, after=row)

    def await_arrival(self, row: int) -> None:
        with tf.device(SERVER):
            wait_for(lambda: not step_ops.step_is_new(self._arrived, tf.constant(row, tf.int64)))

    def release(self, row: int) -> None:
        zero = tf.zeros([], tf.int64)
        with tf.device(SERVER):
            step_ops.step_applied(self._open, tf.constant(row, tf.int64), worker=zero, seen=zero)


class GatedLine(Line):
    """The line, whose batches wait."""

    def __init__(self, gates: Gates) -> None:
        super().__init__(("row",))
        self._gates = gates

    def compute_loss(self, features: dict[str, Any], training: bool = False) -> tf.Tensor:
        if not training:
            return super().compute_loss(features, training)
        found = self.embeddings(features)
        read = [found["row"], tf.identity(self.w), tf.identity(self.b)]
        with tf.control_dependencies(read):
            row = tf.identity(tf.cast(features["row"][0], tf.int64))
        with tf.control_dependencies([self._gates.hold(row)]):
            label = tf.identity(features["label"])
        return self.loss_of(found, {"label": label})


class GatedRun(InStep):
    """A model whose batches wait, and the columns of its file."""

    def __init__(
        self, directory: Path, cluster: LocalCluster, name: str, sync: SyncMode, backup_workers: int
    ) -> None:
        dataset = row_visits.write_dataset(directory / name, train=(24,), evaluation=(4,))
        gates = Gates(name)
        recommender = Recommender(build=lambda: GatedLine(gates))
        super().__init__(recommender, dataset, cluster, sync=sync, backup_workers=backup_workers)
        self.gates = gates
        table = pq.read_table(self.path)
        self.columns = {key: table[key].to_numpy() for key in ("row", "label")}


class Groups:
    """Says, in Python, what becomes of the parts: beside NumPy's values of the model."""

    def __init__(self, columns: dict[str, np.ndarray], backup_workers: int, sync: str) -> None:
        self.twin = Twin(("row",))
        self.groups: list[list[int]] = []
        self.staleness: dict[int, int] = {}
        self._columns, self._backup_workers, self._sync = columns, backup_workers, sync
        self._inside = set(UNITS)
        self._fresh: set[str] = set()
        self._open: list[tuple[int, Any]] = []
        self._seen = dict.fromkeys(UNITS, 0)
        self._next = dict.fromkeys(UNITS, -1)
        self._states = dict.fromkeys(UNITS, self.twin)
        for name in UNITS:
            self._begin(name)

    def waiting(self) -> list[str]:
        """The batches that have read and are not released."""
        return [f"{u}{self._next[u]}" for u in self._inside - self._fresh]

    def release(self, name: str) -> None:
        """A batch gives its part."""
        unit, k = name[0], int(name[1])
        assert self._next[unit] == k
        first = UNITS[unit] + k * BATCH
        part = {key: column[first : first + BATCH] for key, column in self._columns.items()}
        for key in part["row"].tolist():
            self.twin.rows["row"].setdefault(key, np.full(2, START, np.float32))
        gradients = self._states[unit].gradients(part)
        self._open.append((first // BATCH, gradients))
        applied = sum(map(len, self.groups))
        if self._sync == "dense":  # rows at once
            for key, gradient in gradients[2]["row"].items():
                self.twin.rows["row"][key] -= np.float32(RATE) * gradient
            gradients[2]["row"] = {}
        self._stale = applied - self._seen[unit]
        self.staleness[self._stale] = self.staleness.get(self._stale, 0) + 1
        if self._stale:
            self._begin(unit)
        else:
            self._fresh.add(unit)
        self._close()

    def _begin(self, unit: str) -> None:
        self._next[unit] += 1
        if self._next[unit] == NUM_BATCHES:
            self._inside.remove(unit)
        self._seen[unit] = sum(map(len, self.groups))
        self._states[unit] = copy.deepcopy(self.twin)

    def _close(self) -> None:
        while self._open:
            inside = len(self._inside)
            if len(self._fresh) < max(inside - self._backup_workers, min(1, inside)):
                return
            numbers, gradients = zip(*sorted(self._open, key=lambda each: each[0]), strict=True)
            self.twin.apply([BATCH] * len(numbers), gradients, "full")
            self.groups.append(list(numbers))
            self._open, released, self._fresh = [], self._fresh, set()
            for unit in released:
                self._begin(unit)


def check_script(
    directory: Path, cluster: LocalCluster, sync: Literal["dense", "full"], backup_workers: int
) -> None:
    """Parts that come in a scripted order have NumPy's values; late ones are in the next group."""
    name = f"{sync}-{backup_workers}"
    model = GatedRun(directory, cluster, name, sync, backup_workers)
    calls = start(model, UNITS)
    twin = Groups(model.columns, backup_workers, sync)
    script = SCRIPT if backup_workers else [f"{u}{k}" for k in range(NUM_BATCHES) for u in "CAB"]
    for batch in script:
        for each in twin.waiting():
            model.gates.await_arrival(UNITS[each[0]] + int(each[1]) * BATCH)
        row = UNITS[batch[0]] + int(batch[1]) * BATCH
        model.gates.release(row)
        await_part(model, row // BATCH)
        twin.release(batch)
    for call in calls.values():
        cluster.fetch(call)
    assert [group.tolist() for group in last_groups(model)] == [*twin.groups, []]
    twin.twin.check(model)
    found = rows_of(model.collection, directory / f"rows-{name}")
    assert {key: row.embedding for (_, key), row in found.items()} == {
        key: tuple(value.tolist()) for key, value in twin.twin.rows["row"].items()
    }
    assert int(model.optimizer.iterations) == len(twin.groups)
    if sync == "full":
        counted: dict[int, int] = {}
        for of_worker in model.logs.staleness().values():
            for stale, steps in of_worker.items():
                counted[stale] = counted.get(stale, 0) + steps
        assert counted == {k: n * cluster.num_ps for k, n in twin.staleness.items()}
        # Rows get the number of their group's first part.
        first = {part: group[0] for group in twin.groups for part in group}
        assert all(row.last_step == first[key // BATCH] for (_, key), row in found.items())
    print(f"{name}: groups {twin.groups}, staleness {twin.staleness}", flush=True)


def check_order(directory: Path, cluster: LocalCluster) -> None:
    """A part joins a group only once all servers hold it, by edges that no optimizer takes out."""
    dataset = row_visits.write_dataset(directory / "order", train=(24,), evaluation=(4,))
    line = Recommender(build=lambda: Line(("row",)))
    modes: tuple[SyncMode, ...] = ("dense", "full")
    for sync in modes:
        model = InStep(line, dataset, cluster, sync=sync, backup_workers=2)
        unit: Any = model.unit  # a tf.function
        with cluster.scope():
            graph = unit.get_concrete_function(*arguments_of(model, "A")).graph
        loop = next(op for op in graph.get_operations() if op.type == "While")
        body = graph._get_function(loop.get_attr("body").name).graph
        joins = [op for op in body.get_operations() if op.type == "EmbedpsJoinGroup"]
        assert joins
        for join in joins:
            held = {op.device for op in join.control_inputs if op.type == "EmbedpsHoldPart"}
            assert len(held) == cluster.num_ps, (sync, held)


def arguments_of(model: InStep, unit: str) -> tuple[tf.Tensor, ...]:
    first = UNITS[unit]
    return model.arguments(8, first_row=first, first_step=first // BATCH, rate=RATE)


def start(model: InStep, units: Iterable[str]) -> dict[str, ScheduledCall]:
    """Gives each unit to a worker."""
    return {u: model.cluster.schedule(model.unit, arguments_of(model, u)) for u in units}


def last_groups(model: InStep) -> list[np.ndarray]:
    assert model.logs.groups is not None
    return list(model.logs.groups.last_groups().values())


def await_part(model: InStep, number: int) -> None:
    """Waits until a part is in a group."""
    wait_for(lambda: any(number in group for group in last_groups(model)))


def check_lost(directory: Path, cluster: LocalCluster, lost: int, how: signal.Signals) -> None:
    """A step goes on without a worker that is killed or hangs; its unit is trained elsewhere."""
    model = GatedRun(directory, cluster, how.name, "full", 0)
    calls = start(model, UNITS)
    for row in UNITS.values():
        model.gates.await_arrival(row)
    rows = [UNITS[unit] for unit, call in calls.items() if call.worker != lost]
    assert len(rows) == 2
    for row in rows:
        model.gates.release(row)
        await_part(model, row // BATCH)
    assert len(last_groups(model)) == 1  # two parts wait for the third
    os.kill(cluster.processes.pid("worker", lost), how)
    began = time.monotonic()
    if how == signal.SIGSTOP:
        wait_for(lambda: lost in cluster.unresponsive_workers())
        model.logs.forget({lost})
    wait_for(lambda: len(last_groups(model)) > 1)
    secs = time.monotonic() - began
    for row in range(0, 24, BATCH):
        model.gates.release(row)
    for call in calls.values():
        cluster.fetch(call)
    groups = last_groups(model)
    assert groups[0].tolist() == [row // BATCH for row in rows]
    assert sorted(part for group in groups for part in group) == list(range(12))  # each once
    assert int(model.optimizer.iterations) == len(groups) - 1
    found = rows_of(model.collection, directory / f"rows-{how.name}")
    assert {key: row.frequency for (_, key), row in found.items()} == dict.fromkeys(range(24), 1)
    print(f"{how.name}: the others went on after {secs:.2f} s, groups {groups}", flush=True)


def check_all_lost(directory: Path, cluster: LocalCluster) -> None:
    """The client applies a group whose only worker is killed; all others wait for that."""
    model = GatedRun(directory, cluster, "all-lost", "full", 0)
    part = {key: column[:BATCH] for key, column in model.columns.items()}  # A's first
    groups = model.logs.groups
    assert groups is not None
    calls = start(model, "AC")
    for unit in "AC":
        model.gates.await_arrival(UNITS[unit])
    model.gates.release(UNITS["A"])
    await_part(model, 0)
    groups.poll()
    assert groups.awaited() == (0, [calls["C"].worker])
    lost, began = calls["A"].worker, calls["A"].started_at
    assert lost is not None
    os.kill(cluster.processes.pid("worker", lost), signal.SIGKILL)
    wait_for(lambda: len(last_groups(model)) == 2)  # it leaves, and the other has given nothing
    model.gates.release(UNITS["C"])
    await_part(model, UNITS["C"] // BATCH)  # late, so its worker waits for the group before
    wait_for(lambda: began < calls["A"].started_at < math.inf)  # A begins again, and waits too
    groups.poll()
    assert groups.awaited() == (1, [])
    assert int(model.optimizer.iterations) == 0
    groups.poll()
    assert int(model.optimizer.iterations) == 1
    twin = Twin(("row",))
    twin.apply([BATCH], [twin.gradients(part)], "full")
    twin.check(model)
    found = rows_of(model.collection, directory / "rows-applied")
    assert all(found["row", key].embedding == tuple(v) for key, v in twin.rows["row"].items())
    for row in (*range(0, 8, BATCH), *range(16, 24, BATCH)):
        model.gates.release(row)
    for call in calls.values():
        cluster.fetch(call)
    parts = sorted(part for group in last_groups(model) for part in group)
    assert parts == [0, 1, 2, 3, 8, 9, 10, 11]  # each once
    assert int(model.optimizer.iterations) == len(last_groups(model)) - 1
    found = rows_of(model.collection, directory / "rows-all-lost")
    expected = dict.fromkeys((*range(8), *range(16, 24)), 1)
    assert {key: row.frequency for (_, key), row in found.items()} == expected
    print(f"all lost: groups {last_groups(model)}", flush=True)


def main(directory: Path) -> None:
    """Checks all of this with three workers on two servers."""
    cluster = LocalCluster(
        num_ps=2, num_workers=3, log_dir=directory / "logs", server_timeout_secs=3
    )
    try:
        check_order(directory, cluster)
        for sync in ("full", "dense"):
            check_script(directory, cluster, sync, 1)
        check_script(directory, cluster, "full", 0)
        # Two workers: one that dies three times and finishes no unit between ends the cluster.
        for lost, how in enumerate((signal.SIGKILL, signal.SIGSTOP)):
            check_lost(directory, cluster, lost, how)
        check_all_lost(directory, cluster)
    finally:
        cluster.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
