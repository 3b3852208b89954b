"""Moving averages and any optimizer's state travel with a step's messages, and are applied once."""

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
from embedps.engine.dense_optimizer import make_dense_optimizer, rate_scaler
from embedps.engine.network_check import check_step
from embedps.engine.step_model import StepModel
from embedps.engine.steps.interface import StepParts
from embedps.engine.steps.servers import RemoteExchange
from embedps.errors import UsageError
from embedps.tables.collection import EmbeddingCollection
from tests import two_tasks
from tests.builders import dataset_fixture
from tests.commands import run_program
from tests.engine.builders import Trained, check_close, check_messages, force_messages

keras = tf.keras.optimizers
OPTIMIZERS: dict[str, str | Callable[[], Any]] = {
    "adam": "adam",
    "adamw": lambda: keras.AdamW(0.01, weight_decay=0.1),
    "schedule": lambda: keras.Adam(keras.schedules.CosineDecay(0.01, 40)),
}
CONFIG = two_tasks.Config(dropout=0.0)


dataset = dataset_fixture(write_dataset, train=(600,), evaluation=(10,))


def make(dataset: Dataset, cluster: Cluster, kind: str) -> Trained:
    made = Trained(
        two_tasks.make(CONFIG, dataset), dataset, cluster, kind=OPTIMIZERS[kind], rate=0.01
    )
    with cluster.scope():
        check_step(made.step, cluster.strategy, on_servers=cluster.num_ps > 0)
    return made


def test_messages_train_as_keras_does(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every optimizer: test_step_exchange.py."""
    plain = make(dataset, EmbeddedCluster(num_shards=2), "adamw")
    expected = plain.run(plain.make_unit())
    force_messages(monkeypatch)
    sent = make(dataset, EmbeddedCluster(num_shards=2), "adamw")
    unit = sent.make_unit()
    counts = sent.run(unit)
    assert counts.keys() == expected.keys()
    for name, count in counts.items():
        np.testing.assert_allclose(count, expected[name], rtol=1e-5, err_msg=name)
    check_close(sent.weights(), plain.weights(), rtol=1e-5, atol=1e-6)
    (variance,) = (v for v in sent.step.state if "moving_variance" in v.name)
    assert np.all(variance.numpy() < 0.999)
    # A second attempt at the unit: its steps are in the servers' log.
    before = sent.weights()
    sent.run(unit)
    check_close(sent.weights(), before)


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
    run_program("-m", "tests.engine.test_state_exchange", tmp_path)


def check_servers_and_worker(directory: Path) -> None:
    """Checks counts, weights and messages, for several optimizers."""
    dataset = write_dataset(directory / "data", train=(600,), evaluation=(10,))
    remote = LocalCluster(num_ps=2, num_workers=1, log_dir=directory / "logs")
    here = EmbeddedCluster(num_shards=2)
    try:
        for kind in ("adam", "adamw", "schedule"):
            there, plain = make(dataset, remote, kind), make(dataset, here, kind)
            unit = there.make_unit()
            # As many messages as without moving averages, metrics and another optimizer.
            assert len(there.collection.groups) == 2
            check_messages(unit, there.arguments(), 2, kind)
            counts, expected = there.run(unit), plain.run(plain.make_unit())
            for name, count in counts.items():
                np.testing.assert_allclose(count, expected[name], rtol=1e-4, err_msg=name)
            check_close(there.weights(), plain.weights(), rtol=1e-3, atol=1e-5)
    finally:
        remote.close()
        here.close()


if __name__ == "__main__":
    check_servers_and_worker(Path(sys.argv[1]))
