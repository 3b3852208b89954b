"""Steps that workers take together on a local cluster, beside NumPy, for test_sync_exchange.py.

A program of its own: TensorFlow never leaves a cluster that it has connected to. The model is made
so that float32 has nothing to round in a part's gradients but the products: two rows per batch, and
rates and halves that are powers of two. So NumPy's sums in order of rank must give the same bits.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf

import embedps
from benchmarks import row_visits
from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import Cluster, ScheduledCall
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.engine.steps.ways import SyncMode
from embedps.tables import SGD, FeatureSpec, TableSpec
from tests import frozen, two_tasks
from tests.builders import make_dlrm, write_dataset
from tests.engine.builders import Trained, assign, check_close, check_messages
from tests.tables.builders import Rows, constant, group_files, rows_in, rows_of

BATCH, RATE, START = 2, 0.25, 0.375
F = np.float32


class Line(tf.keras.Model):
    """Predicts the label by a line over the rows of "row", of dim 2, and maybe of C1, of dim 1."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        tables = [
            TableSpec(name=n, embedding_dim=dim, optimizer=SGD(), initializer=constant(START))
            for n, dim in (("C1", 1), ("row", 2))
            if n in names
        ]
        self.embeddings = embedps.Embeddings(
            [FeatureSpec(name=table.name, table=table) for table in tables]
        )
        self.w = self.add_weight(name="w", shape=[3], initializer=tf.constant_initializer(0.75))
        self.b = self.add_weight(name="b", shape=[], initializer="zeros")

    def compute_loss(self, features: dict[str, Any], training: bool = False) -> tf.Tensor:
        return self.loss_of(self.embeddings(features), features)

    def loss_of(self, found: dict[str, tf.Tensor], features: dict[str, Any]) -> tf.Tensor:
        """Computes the loss of a batch with its rows."""
        w, pair = tf.unstack(self.w), found["row"]
        one = found["C1"][:, 0] if "C1" in found else tf.ones_like(features["label"])
        line = (one * w[0] + (pair[:, 0] * w[1] + pair[:, 1] * w[2])) + self.b
        return tf.reduce_mean(tf.square(line - features["label"]))


class Twin:
    """The same in NumPy; the rows of each table are by id."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.weights, self.bias = np.full(3, 0.75, F), F(0)
        self.rows: dict[str, dict[int, np.ndarray]] = {name: {} for name in names}

    def gradients(self, part: dict[str, np.ndarray]) -> tuple[Any, ...]:
        """Those of weights, of the bias, and by table and id of rows."""
        labels, w = part["label"].astype(F), self.weights
        values = {
            name: np.stack([rows.setdefault(i, np.full(dim, START, F)) for i in part[name]])
            for (name, rows), dim in zip(self.rows.items(), (2, 1), strict=False)
        }
        v = values["row"]
        u = values["C1"][:, 0] if "C1" in values else np.ones(len(labels), F)
        line = (u * w[0] + (v[:, 0] * w[1] + v[:, 1] * w[2])) + self.bias
        d = (line - labels) * F(2 / len(labels))
        of_rows: dict[str, dict[int, np.ndarray]] = {name: {} for name in self.rows}
        for name, ours in (("row", w[1:]), ("C1", w[:1])):
            for i, each in zip(part[name] if name in of_rows else (), d, strict=False):
                of_rows[name][i] = of_rows[name].get(i, F(0)) + each * ours
        of_weights = np.array([(d * u).sum(), (d * v[:, 0]).sum(), (d * v[:, 1]).sum()], F)
        return of_weights, d.sum(), of_rows

    def step(self, parts: Sequence[dict[str, np.ndarray]], sync: str) -> None:
        """Applies the parts' sums in order of rank."""
        self.apply([len(part["label"]) for part in parts], map(self.gradients, parts), sync)

    def apply(self, sizes: Sequence[int], gradients: Iterable[tuple[Any, ...]], sync: str) -> None:
        """Applies the sums of parts' gradients, in the order given."""
        shares = [F(size) / F(sum(sizes)) for size in sizes]
        weights, biases, of_rows = zip(*gradients, strict=True)
        self.weights = self.weights - F(RATE) * in_order(shares, weights)
        self.bias = self.bias - F(RATE) * in_order(shares, biases)
        for name, rows in self.rows.items():
            for key in {key for each in of_rows for key in each[name]}:
                known = [
                    (share, each[name][key])
                    for share, each in zip(shares, of_rows, strict=True)
                    if key in each[name]
                ]
                # In dense mode each part at once; then no two parts of a step share a row.
                assert sync == "full" or len(known) == 1
                one = in_order(*zip(*known, strict=True)) if sync == "full" else known[0][1]
                rows[key] = rows[key] - F(RATE) * one

    def check(self, model: Trained) -> None:
        """Checks that a model's variables have the same bits."""
        found = [v.numpy() for v in model.model.trainable_variables]
        check_close(found, [self.weights, self.bias])

    def check_rows(self, model: Trained, directory: Path) -> Rows:
        """Checks that its rows have the same bits; returns them."""
        found = rows_of(model.collection, directory)
        assert {key: row.embedding for key, row in found.items()} == {
            (name, key): tuple(value.tolist())
            for name, of_table in self.rows.items()
            for key, value in of_table.items()
        }
        return found


def in_order(shares: Sequence[np.float32], values: Sequence[Any]) -> Any:
    """The weighted sum, one after the other, in float32."""
    summed = shares[0] * values[0]
    for share, value in zip(shares[1:], values[1:], strict=True):
        summed = summed + share * value
    return summed


class InStep(Trained):
    """A model on the cluster, and its unit of which each worker trains a rank."""

    def __init__(
        self,
        recommender: Recommender,
        dataset: Dataset,
        cluster: Cluster,
        *,
        sync: SyncMode,
        kind: str = "sgd",
        batch_rows: int = BATCH,
        backup_workers: int | None = None,
    ) -> None:
        super().__init__(recommender, dataset, cluster, kind=kind, rate=RATE)
        self.unit = self.make_unit(
            batch_rows, logs=self.logs, sync=sync, backup_workers=backup_workers
        )

    def rank(
        self, rank: int, *, rows: tuple[int, int], first_step: int, after: int
    ) -> tuple[tf.Tensor, ...]:
        """The arguments of one of two ranks; rows are the first one and how many."""
        first, count = rows
        unit: dict[str, Any] = {"first_row": first, "first_step": first_step, "rate": RATE}
        return self.arguments(count, **unit, ranks=(rank, 2, after))

    def schedule(self, rank: int, **unit: Any) -> ScheduledCall:
        return self.cluster.schedule(self.unit, self.rank(rank, **unit))

    def train(self, *, ranks: Sequence[int] = (0, 1), **unit: Any) -> None:
        for call in [self.schedule(rank, **unit) for rank in ranks]:
            self.cluster.fetch(call)


def parts_of(rows: tuple[int, int], num_ranks: int, columns: dict[str, np.ndarray]) -> list[Any]:
    """The steps of a unit: for each its parts, in order of rank. By dealing out batches."""
    first, count = rows
    sizes = [min(BATCH, count - at) for at in range(0, count, BATCH)]
    ranges, at = [], first
    for rank in range(num_ranks):
        mine = []
        for size in sizes[rank::num_ranks]:
            mine.append({name: column[at : at + size] for name, column in columns.items()})
            at += size
        ranges.append(mine)
    steps = range(-(-len(sizes) // num_ranks))
    return [[mine[k] for mine in ranges if k < len(mine)] for k in steps]


def check_line(directory: Path, cluster: LocalCluster, sync: SyncMode) -> None:
    """Four units have NumPy's values: with short last batches, and with last steps of one part."""
    dataset = row_visits.write_dataset(directory / sync, train=(40,), evaluation=(4,))
    names = ("row", "C1") if sync == "full" else ("row",)
    table = pq.read_table(dataset.absolute_path(dataset.split("train").files[0]))
    columns = {name: table[name].to_numpy() for name in (*names, "label")}
    model = InStep(Recommender(build=lambda: Line(names)), dataset, cluster, sync=sync)
    twin, after, first_step, updates, shared = Twin(names), -1, 0, 0, 0
    for rows in ((0, 11), (11, 10), (21, 9), (30, 1)):
        steps = parts_of(rows, 2, columns)
        ranks = range(len(steps[0]))
        model.train(ranks=ranks, rows=rows, first_step=first_step, after=after)
        for parts in steps:
            twin.step(parts, sync)
            shared += "C1" in names and bool({*parts[0]["C1"]} & {*parts[-1]["C1"]})
        updates += len(steps)
        after = first_step + 2 * (len(steps) - 1)
        first_step += sum(map(len, steps))
    assert bool(shared) == (sync == "full")
    twin.check(model)
    found = twin.check_rows(model, directory / f"line-{sync}")
    # Rows get the number of their step, or of their part.
    last = {key: row.last_step for (name, key), row in found.items() if name == "row"}
    assert [last[row] for row in range(6, 11)] == (
        [0, 0, 2, 2, 4] if sync == "full" else [1, 1, 3, 3, 5]
    )
    assert int(model.optimizer.iterations) == updates
    assert model.logs.open_steps() == {}
    counted = model.logs.staleness()
    assert sum(n for of in counted.values() for n in of.values()) == cluster.num_ps * first_step
    if sync == "full":
        assert {stale for of in counted.values() for stale in of} == {0}
    # As many messages as of steps that do not wait.
    arguments = model.rank(0, rows=(0, 11), first_step=0, after=-1)
    check_messages(model.unit, arguments, cluster.num_ps)
    print(f"line {sync}: {updates} updates, staleness {counted}")


def check_two_groups(directory: Path, cluster: LocalCluster) -> None:
    """A group's step has its own parts alone, though another group's step is applied between them.

    The first part read before that, so it is as stale as that step has parts.
    """
    dataset = row_visits.write_dataset(directory / "groups", train=(8,), evaluation=(4,))
    names = ("row", "C1")
    table = pq.read_table(dataset.absolute_path(dataset.split("train").files[0]))
    columns = {name: table[name].to_numpy() for name in (*names, "label")}
    model = InStep(Recommender(build=lambda: Line(names)), dataset, cluster, sync="full")
    twin = Twin(names)
    ours: dict[str, Any] = {"rows": (0, 4), "first_step": 0, "after": -1}
    theirs: dict[str, Any] = {"rows": (4, 4), "first_step": 2, "after": -1}
    [parts] = parts_of(ours["rows"], 2, columns)
    [others] = parts_of(theirs["rows"], 2, columns)
    early = model.schedule(0, **ours)
    found = wait_for(model.logs.open_steps)
    assert found == {0: [early.worker, None]}, found
    gradients = [twin.gradients(parts[0])]
    model.train(**theirs)
    twin.step(others, "full")
    gradients.append(twin.gradients(parts[1]))
    model.train(ranks=(1,), **ours)
    cluster.fetch(early)
    twin.apply([BATCH, BATCH], gradients, "full")
    twin.check(model)
    twin.check_rows(model, directory / "two-groups")
    counted: dict[int, int] = {}
    for of_worker in model.logs.staleness().values():
        for stale, steps in of_worker.items():
            counted[stale] = counted.get(stale, 0) + steps
    assert counted == {0: 3 * cluster.num_ps, 2: cluster.num_ps}
    assert int(model.optimizer.iterations) == 2
    print(f"two groups: staleness {counted}")


def check_attempts(directory: Path, cluster: LocalCluster, dataset: Dataset) -> None:
    """A repeated and a killed attempt change nothing of a DLRM's training, bit for bit.

    It has an optimizer with slots, and tables that admit ids.
    """
    dlrm = make_dlrm(dataset, min_count=2)
    model = InStep(dlrm, dataset, cluster, sync="full", kind="adam", batch_rows=40)
    begun = model.weights()
    expected: tuple[list[np.ndarray], Rows] | None = None

    def twice_at_once(**unit: Any) -> None:
        model.train(ranks=(0, 0, 1), **unit)

    def again(**unit: Any) -> None:
        model.train(**unit)
        model.train(**unit)

    def killed(**unit: Any) -> None:
        waiting = model.schedule(1, **unit)
        found = wait_for(model.logs.open_steps)
        assert waiting.worker is not None
        assert found == {unit["first_step"]: [None, waiting.worker]}, found
        os.kill(cluster.processes.pid("worker", waiting.worker), signal.SIGKILL)
        rest = model.schedule(0, **unit)
        for call in (rest, waiting):
            cluster.fetch(call)

    for i, attempts in enumerate((model.train, twice_at_once, again, killed)):
        assign(model.variables(), begun)
        model.collection.clear()
        first = 1000 * i
        attempts(rows=(0, 600), first_step=first, after=-1)
        assert model.logs.open_steps() == {}
        assert int(model.optimizer.iterations) == 8
        assert any(s.refused for s in model.collection.admission_stats().values())
        rows = rows_of(model.collection, directory / f"attempts-{i}")
        rows = {k: dataclasses.replace(r, last_step=r.last_step - first) for k, r in rows.items()}
        if expected is None:
            expected = model.weights(), rows
        check_close(model.weights(), expected[0])
        assert rows == expected[1]
        print(f"{attempts.__name__}: the same bits")
    assert expected is not None
    check_replicas(directory, dataset, begun, expected)


def check_replicas(
    directory: Path,
    dataset: Dataset,
    begun: Sequence[np.ndarray],
    expected: tuple[list[np.ndarray], Rows],
) -> None:
    """One process that adds in the same order has the same bits."""
    here = EmbeddedCluster(num_shards=2)
    model = Trained(make_dlrm(dataset, min_count=2), dataset, here, kind="adam", rate=RATE)
    assign(model.variables(), begun)
    model.run(model.make_unit(40, replicas=2), *model.arguments(rate=RATE))
    check_close(model.weights(), expected[0])
    assert rows_of(model.collection, directory / "replicas") == expected[1]
    print("one process: the same bits")


def check_state(cluster: Cluster, directory: Path) -> None:
    """Moving averages move by the weighted mean of what each part's own statistics move them by.

    So the mean moves as that of one batch of all rows does; the variance within parts does too, but
    not that between their means.
    """
    dataset = row_visits.write_dataset(directory / "state", train=(40,), evaluation=(4,))
    recommender = two_tasks.make(two_tasks.Config(dropout=0.0), dataset)
    here = EmbeddedCluster(num_shards=cluster.num_ps)
    plain = Trained(recommender, dataset, here, rate=RATE)
    reader = plain.step.input(batch_rows=9, shuffle_rows=0)
    opened = reader.open(plain.path, 0, 14)
    means, variances, rows = [], [], []
    for _ in range(2):
        batch = reader.next(opened)
        found = plain.collection.combine(plain.collection.lookup(batch.columns, insert=True))
        dense = plain.step.model.shared.layers[0]
        x = dense(tf.concat([found[n] for n in row_visits.CARDINALITIES], axis=1)).numpy()
        means.append(x.mean(axis=0))
        variances.append(x.var(axis=0))
        rows.append(len(x))
    model = InStep(recommender, dataset, cluster, sync="full", batch_rows=9)
    model.train(rows=(0, 14), first_step=0, after=-1)
    norm = model.step.model.shared.layers[1]
    share = [n / sum(rows) for n in rows]
    assert rows == [9, 5]
    moved = 1 - norm.momentum
    mean = moved * (share[0] * means[0] + share[1] * means[1])
    variance = norm.momentum + moved * (share[0] * variances[0] + share[1] * variances[1])
    np.testing.assert_allclose(norm.moving_mean.numpy(), mean, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(norm.moving_variance.numpy(), variance, rtol=1e-5)
    print("state: as the formula says")


def check_frozen(directory: Path, cluster: LocalCluster, dataset: Dataset) -> None:
    """Frozen rows keep all bits, and new ids get none, however workers exchange."""
    unit: dict[str, Any] = {"rows": (0, 600), "first_step": 100, "after": -1}
    here = EmbeddedCluster(num_shards=cluster.num_ps)
    learning = frozen.make(frozen.Config(learns=True), dataset)
    first = Trained(learning, dataset, here, rate=RATE)
    first.run(first.make_unit(40), *first.arguments(200, first_step=100, rate=RATE))
    files = first.collection.files.write("base", str(directory / "learned"), since={})
    ways: list[tuple[SyncMode, int | None]] = [
        ("none", None), ("dense", None), ("full", None), ("dense", 0), ("full", 0)
    ]  # fmt: skip
    kinds: tuple[Literal["layer", "tables"], ...] = ("layer", "tables")
    for (sync, backup_workers), by in itertools.product(ways, kinds):
        recommender = frozen.make(frozen.Config(by=by), dataset)
        model = InStep(
            recommender, dataset, cluster, sync=sync, batch_rows=40, backup_workers=backup_workers
        )
        model.collection.files.load(group_files(files))
        begun = model.weights()
        waits = sync != "none" and backup_workers is None
        for rank in range(2 if waits else 1):
            cluster.schedule(model.unit, model.rank(rank, **unit)[: 9 if waits else 6])
        cluster.join()
        name = f"frozen {by} {sync} {backup_workers}"
        assert rows_of(model.collection, directory / name) == rows_in([f.path for f in files]), name
        assert model.collection.admission_stats()["C2"].counters == 0
        assert any(not np.array_equal(*each) for each in zip(begun, model.weights(), strict=True))
        print(f"{name}: the same rows")


def wait_for(get: Callable[[], Any]) -> Any:
    """Gives the first thing that is not empty."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = get()
        if found:
            return found
        time.sleep(0.02)
    raise TimeoutError("nothing came within two minutes")


def main(directory: Path, num_ps: int) -> None:
    """Checks all of this with three workers, so that two can attempt the same part."""
    dataset = write_dataset(directory / "data", train=(600,))
    cluster = LocalCluster(num_ps=num_ps, num_workers=3, log_dir=directory / "logs")
    try:
        check_line(directory, cluster, "full")
        check_two_groups(directory, cluster)
        if num_ps > 1:
            check_line(directory, cluster, "dense")
            check_state(cluster, directory)
            check_frozen(directory, cluster, dataset)
            check_attempts(directory, cluster, dataset)
    finally:
        cluster.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
