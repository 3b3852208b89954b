"""Moving averages and any optimizer's state travel with a step's messages, and are applied once."""

import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.row_visits import write_dataset
from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset
from embedps.engine.dense_optimizer import make_dense_optimizer, rate_scaler, variables_of
from embedps.engine.network_check import check_step
from embedps.engine.step_model import StepModel
from embedps.engine.steps.interface import StepParts
from embedps.engine.steps.servers import RemoteExchange
from embedps.engine.steps.ways import ONE_PROCESS
from embedps.engine.unit_functions import EXCHANGES, make_train_unit
from embedps.errors import UsageError
from embedps.tables.collection import EmbeddingCollection
from tests import forked, two_tasks
from tests.builders import ROOT
from tests.engine.test_step_exchange import tensors_between_tasks, unit_arguments

keras = tf.keras.optimizers
OPTIMIZERS: dict[str, str | Callable[[], Any]] = {
    "adam": "adam",
    "adamw": lambda: keras.AdamW(0.01, weight_decay=0.1),
    "lion": "lion",
    "schedule": lambda: keras.Adam(keras.schedules.CosineDecay(0.01, 40)),
    "global_clipnorm": lambda: keras.Adam(0.01, global_clipnorm=0.05),
    # The bias before BatchNormalization has a gradient of nothing but rounding. RMSprop divides it
    # by its own size, unless epsilon is larger.
    "clipvalue": lambda: keras.RMSprop(0.01, momentum=0.9, clipvalue=0.01, epsilon=1e-5),
    "ftrl": "ftrl",
}
_numbers = itertools.count()
CONFIG = two_tasks.Config(dropout=0.0)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", train=(600,), evaluation=(10,))


@dataclasses.dataclass
class Trained:
    """A model on a cluster, and its unit function."""

    step: StepModel
    optimizer: Any
    collection: EmbeddingCollection
    unit: Any
    cluster: Cluster

    def run(self, dataset: Dataset) -> dict[str, np.ndarray]:
        call = self.cluster.schedule(self.unit, unit_arguments(dataset))
        return {name: np.asarray(value) for name, value in self.cluster.fetch(call).items()}

    def weights(self) -> list[np.ndarray]:
        return [v.numpy() for v in (*self.step.variables, *variables_of(self.optimizer))]


def make(dataset: Dataset, cluster: Cluster, kind: str, *, overlap: bool = False) -> Trained:
    tf.keras.utils.set_random_seed(5)
    with cluster.scope():
        step = StepModel(two_tasks.make(CONFIG, dataset), dataset)
        check_step(step, cluster.strategy, on_servers=cluster.num_ps > 0)
        optimizer = make_dense_optimizer(OPTIMIZERS[kind], 0.01, step.model)
    collection = EmbeddingCollection(
        step.tables,
        step.features,
        devices=cluster.shard_devices,
        container=f"test-{next(_numbers)}",
    )
    reader = step.input(batch_rows=60, shuffle_rows=0)
    unit = make_train_unit(step, optimizer, collection, cluster.strategy, reader, overlap=overlap)
    return Trained(step, optimizer, collection, unit, cluster)


def by_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process exchange messages with itself, as with servers."""
    monkeypatch.setitem(EXCHANGES, ONE_PROCESS, RemoteExchange)


@pytest.mark.parametrize(
    "kind",
    ["adamw", *(pytest.param(k, marks=pytest.mark.slow) for k in OPTIMIZERS if k != "adamw")],
)
def test_messages_train_as_keras_does(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    plain = make(dataset, EmbeddedCluster(num_shards=2), kind)
    by_messages(monkeypatch)
    sent = make(dataset, EmbeddedCluster(num_shards=2), kind)
    expected, counts = plain.run(dataset), sent.run(dataset)
    assert counts.keys() == expected.keys()
    for name, count in counts.items():
        np.testing.assert_allclose(count, expected[name], rtol=1e-5, err_msg=name)
    for ours, theirs in zip(sent.weights(), plain.weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    (variance,) = (v for v in sent.step.state if "moving_variance" in v.name)
    assert np.all(variance.numpy() < 0.999)
    # A second attempt at the unit: its steps are in the servers' log.
    before = sent.weights()
    sent.run(dataset)
    for ours, theirs in zip(sent.weights(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_optimizers_that_servers_cannot_run_are_refused(dataset: Dataset) -> None:
    step = StepModel(two_tasks.make(CONFIG, dataset), dataset)
    for make_optimizer, message in (
        (keras.Nadam, "optimizer Nadam cannot run .* its state '_u_product' is not one slot per"),
        (lambda: keras.Adam(use_ema=True), r"Adam\(use_ema=True\) cannot run on parameter servers"),
    ):
        optimizer = make_dense_optimizer(make_optimizer, 0.1, step.model)
        with pytest.raises(UsageError, match=message):
            RemoteExchange(StepParts(step, optimizer, _collection(step)))
    with pytest.raises(UsageError, match="legacy is not supported: use the one of"):
        make_dense_optimizer(keras.legacy.RMSprop, 0.1, step.model)
    with pytest.raises(UsageError, match=r"must be a tf.keras.optimizers.Opt.* builtins.int"):
        make_dense_optimizer(lambda: 3, 0.1, step.model)


def test_a_schedule_is_not_scaled(dataset: Dataset) -> None:
    step = StepModel(two_tasks.make(CONFIG, dataset), dataset)
    scale = rate_scaler(make_dense_optimizer(OPTIMIZERS["schedule"], 0.1, step.model))
    scale(1.0)
    with pytest.raises(UsageError, match="is a schedule, which a callback cannot scale"):
        scale(0.5)
    plain = make_dense_optimizer("lion", 0.1, step.model)
    rate_scaler(plain)(0.5)
    assert float(plain.learning_rate) == pytest.approx(0.05)


def _collection(step: StepModel) -> EmbeddingCollection:
    return EmbeddingCollection(
        step.tables, step.features, devices=["/device:CPU:0"], container="test-refused"
    )


@pytest.mark.multiprocess
@pytest.mark.slow
def test_servers_and_a_worker_train_as_this_process_does(tmp_path: Path) -> None:
    # In a client of its own: TensorFlow never leaves a cluster that it has connected to.
    done = forked.run(
        ["-m", "tests.engine.test_state_exchange", str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def check_servers_and_worker(directory: Path) -> None:
    """Checks counts, weights and messages, for several optimizers."""
    dataset = write_dataset(directory / "data", train=(600,), evaluation=(10,))
    remote = LocalCluster(num_ps=2, num_workers=1, log_dir=directory / "logs")
    here = EmbeddedCluster(num_shards=2)
    servers = [f"/job:ps/replica:0/task:{task}" for task in range(2)]
    try:
        for kind in ("adam", "adamw", "schedule"):
            there, plain = make(dataset, remote, kind), make(dataset, here, kind)
            # As many messages as without moving averages, metrics and another optimizer.
            assert len(there.collection.groups) == 2
            assert tensors_between_tasks(there.unit, unit_arguments(dataset)) == {
                **{("", server): 2 for server in servers},
                **{(server, ""): 1 for server in servers},
            }, kind
            counts, expected = there.run(dataset), plain.run(dataset)
            for name, count in counts.items():
                np.testing.assert_allclose(count, expected[name], rtol=1e-4, err_msg=name)
            for ours, theirs in zip(there.weights(), plain.weights(), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    finally:
        remote.close()
        here.close()


if __name__ == "__main__":
    check_servers_and_worker(Path(sys.argv[1]))
