"""A process that takes each step in parts trains as formulas say, and as a bigger batch does."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.cluster.embedded import EmbeddedCluster
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.tables import SGD, Initializer
from tests.builders import dataset_fixture, make_dlrm
from tests.commands import run_program
from tests.engine.builders import Trained
from tests.tables.builders import rows_of

_numbers = itertools.count()


class Replicated(Trained):
    """A model in this process, and what its units have made of it."""

    def __init__(self, dataset: Dataset, recommender: Recommender, *, kind: str) -> None:
        super().__init__(recommender, dataset, EmbeddedCluster(num_shards=2), kind=kind, rate=0.25)

    def train(self, path: Path, num_rows: int, *, batch_rows: int, replicas: int = 1) -> None:
        """Trains on one unit."""
        unit = self.make_unit(batch_rows, replicas=replicas)
        _, *arguments = self.arguments(num_rows, rate=0.5)
        counts = self.run(unit, tf.constant(str(path)), *arguments)
        assert counts["examples"] == num_rows


dataset = dataset_fixture(train=(600,), evaluation=(10,))


def file_of(dataset: Dataset) -> Path:
    return Path(dataset.paths("train")[0])


def batches_of(num_rows: int, *, batch_rows: int, replicas: int) -> list[list[np.ndarray]]:
    """By step and rank, the rows of each batch: each rank has one range of the unit's rows."""
    num_batches = -(-num_rows // batch_rows)
    ranges, first = [], 0
    for rank in range(replicas):
        own = len(range(rank, num_batches, replicas))
        rows = own * batch_rows
        if rank == (num_batches - 1) % replicas:
            rows -= num_batches * batch_rows - num_rows
        ranges.append(np.arange(first, first + rows))
        first += rows
    assert first == num_rows
    return [
        [r[k * batch_rows :][:batch_rows] for r in ranges if len(r) > k * batch_rows]
        for k in range(-(-num_batches // replicas))
    ]


@pytest.mark.parametrize(("replicas", "kind", "min_count"), [(4, "adam", 1), (3, "sgd", 3)])
def test_replicas_train_as_a_batch_of_all_their_rows(
    dataset: Dataset, tmp_path: Path, replicas: int, kind: str, min_count: int
) -> None:
    """The last step of 590 rows has fewer parts than replicas, or a part with fewer rows."""
    steps = batches_of(590, batch_rows=60, replicas=replicas)
    table = pq.read_table(file_of(dataset))
    order = np.concatenate([rows for parts in steps for rows in parts])
    pq.write_table(table.take(order), tmp_path / "reordered.parquet")
    make: Callable[[], Replicated] = lambda: Replicated(  # noqa: E731
        dataset, make_dlrm(dataset, min_count=min_count), kind=kind
    )
    ours, plain = make(), make()
    ours.train(file_of(dataset), 590, batch_rows=60, replicas=replicas)
    plain.train(tmp_path / "reordered.parquet", 590, batch_rows=60 * replicas)
    rows, expected_rows = (
        rows_of(trained.collection, tmp_path / name)
        for name, trained in (("ours", ours), ("plain", plain))
    )
    assert rows.keys() == expected_rows.keys()
    assert {k: r.frequency for k, r in rows.items()} == {
        k: r.frequency for k, r in expected_rows.items()
    }
    if min_count > 1:  # a row that is admitted within a step reads otherwise in each part
        assert ours.collection.admission_stats() == plain.collection.admission_stats()
        return
    for value, expected in zip(ours.weights(), plain.weights(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-5)
    for key, row in rows.items():
        expected = np.array(expected_rows[key].embedding)
        np.testing.assert_allclose(row.embedding, expected, rtol=1e-3, atol=1e-5)


DIM = 3
START = np.float32(0.3)
SCALE = np.array([0.7, -1.3, 0.4], np.float32)


class Products(tf.keras.Model):
    """Its loss is the mean of sums of products, so each gradient has no sum but over the batch."""

    def __init__(self) -> None:
        super().__init__()
        start = Initializer(kind="constant", low=float(START))
        table = embedps.TableSpec(name="C1", embedding_dim=DIM, optimizer=SGD(), initializer=start)
        self.embeddings = embedps.Embeddings([embedps.FeatureSpec(name="C1", table=table)])
        self.scale = self.add_weight(
            name="scale", shape=[DIM], initializer=tf.constant_initializer(SCALE)
        )
        self.average = self.add_weight(
            name="average", shape=[], initializer="zeros", trainable=False
        )
        self.calls = self.add_weight(
            name="calls", shape=[], dtype=tf.int64, initializer="zeros", trainable=False
        )

    def compute_loss(self, features: dict[str, Any], training: bool = False) -> tf.Tensor:
        known = tf.where(tf.math.is_nan(features["I1"]), 0.0, features["I1"])
        x = (known + 1.0) * 0.1
        if training:
            self.average.assign_add((x[0] - self.average) * 0.25)
            self.calls.assign_add(1)
        rows = self.embeddings(features)["C1"]
        return tf.reduce_mean(tf.reduce_sum(rows * self.scale * x[:, tf.newaxis], axis=1))


def test_three_steps_of_two_parts_equal_numpy_to_the_bit(dataset: Dataset, tmp_path: Path) -> None:
    """The last part has one row: the weights of that step are 2/3 and 1/3."""
    ours = Replicated(dataset, Recommender(build=Products), kind="sgd")
    ours.train(file_of(dataset), 11, batch_rows=2, replicas=2)

    one = np.float32(1)
    columns = pq.read_table(file_of(dataset)).slice(0, 11)
    ids, numbers = columns["C1"].to_numpy(), np.nan_to_num(columns["I1"].to_numpy())
    rows: dict[int, np.ndarray] = {int(i): np.full(DIM, START) for i in ids}
    scale, average = SCALE.copy(), np.float32(0)
    for parts in batches_of(11, batch_rows=2, replicas=2):
        row_sums: dict[int, np.ndarray] = {}
        scale_sum, average_sum = np.zeros(DIM, np.float32), np.float32(0)
        total = np.float32(sum(map(len, parts)))
        for part in parts:
            weight = np.float32(len(part)) / total
            x = (numbers[part] + one) * np.float32(0.1)
            of_rows: dict[int, np.ndarray] = {}
            of_scale = np.zeros(DIM, np.float32)
            for n, at in enumerate(part):
                upstream = one / np.float32(len(part)) * x[n]
                key = int(ids[at])
                of_rows[key] = of_rows.get(key, np.float32(0)) + upstream * scale
                of_scale = of_scale + upstream * rows[key]
            for key, gradient in of_rows.items():
                more = weight * gradient
                row_sums[key] = row_sums[key] + more if key in row_sums else more
            scale_sum = scale_sum + weight * of_scale
            change = (average + (x[0] - average) * np.float32(0.25)) - average
            average_sum = average_sum + weight * change
        for key, gradient in row_sums.items():
            rows[key] = rows[key] - np.float32(0.5) * gradient
        scale = scale - np.float32(0.25) * scale_sum
        average = average + average_sum
    found = {id_: r.embedding for (_, id_), r in rows_of(ours.collection, tmp_path).items()}
    assert found.keys() == rows.keys()
    for key, row in rows.items():
        np.testing.assert_array_equal(found[key], row)
    np.testing.assert_array_equal(ours.model.scale.numpy(), scale)
    assert ours.model.average.numpy() == average
    assert ours.model.calls.numpy() == 6
    assert ours.optimizer.iterations.numpy() == 3


def test_replicas_of_a_strategy_compute_on_their_devices(dataset: Dataset) -> None:
    """Tracing needs no devices: `tests/training/test_replicas.py` runs on them."""
    devices = ["/device:CPU:0", "/device:CPU:1"]
    strategy = tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    ours = Replicated(dataset, make_dlrm(dataset), kind="adam")
    unit = ours.make_unit(replicas=2, mirrored=strategy)
    graph = unit.get_concrete_function(*ours.arguments()).graph
    (loop,) = (op for op in graph.get_operations() if op.type in ("While", "StatelessWhile"))
    body = graph._get_function(loop.get_attr("body").name).graph
    placed: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for op in body.get_operations():
        placed[op.type][op.device[-len(devices[0]) :]] += 1
    products = placed["MatMul"]
    assert products.keys() == set(devices)
    assert products[devices[0]] == products[devices[1]]
    for kind in ("EmbedpsLookup", "EmbedpsCombine", "EmbedpsMergeRows", "ResourceApplyAdam"):
        assert placed[kind].keys() == {devices[0]}, kind


@pytest.mark.multiprocess
@pytest.mark.slow
def test_replicas_have_the_bits_of_as_many_workers_in_step(tmp_path: Path) -> None:
    """With short last parts, clipping, an admission, moving averages and two optimizers."""
    run_program("-m", "tests.engine.replica_program", tmp_path)
