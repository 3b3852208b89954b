"""Stock programs of tf.distribute train rows on the parameter servers of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from tests.stock_cluster import StockCluster, stock_cluster

pytestmark = pytest.mark.multiprocess


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockCluster]:
    with stock_cluster(tmp_path_factory.mktemp("servers")) as made:
        yield made


def found_by(cluster: StockCluster, case: str, directory: Path, **tasks: int) -> Any:
    """Runs a case of the program; gives what it found."""
    output = cluster.run("-m", "tests.keras.servers_program", case, directory, **tasks)
    return json.loads(output.splitlines()[-1])


def test_one_worker_and_one_server_equal_plain_keras(cluster: StockCluster, tmp_path: Path) -> None:
    found = found_by(cluster, "equality", tmp_path, num_ps=1, num_workers=1)
    assert found["cluster"] == pytest.approx(found["plain"], abs=1e-5)
    assert found["plain"][-1] < 0.01


def test_fit_trains_scores_predicts_and_saves(cluster: StockCluster, tmp_path: Path) -> None:
    found = found_by(cluster, "fit", tmp_path)
    losses, scored = found["history"]["loss"], found["history"]["val_loss"]
    assert losses == sorted(losses, reverse=True)
    assert scored[-1] < 0.05 > found["scores"][0]
    assert np.abs(np.array(found["predicted"][:40]) - np.arange(40) % 3).max() < 0.5
    assert any("160" in line and "embeddings" in line for line in found["summary"])
    assert found["steps"] == 65
    assert found["cleared"] == 0
    assert found["moved"] == pytest.approx(0, abs=1e-6)  # by load_weights of the last epoch
    assert list((tmp_path / "logs").rglob("events*"))

    manifest = CheckpointDirectory(tmp_path / "run").latest()
    assert manifest is not None
    assert manifest.step == 65

    resumed = found_by(cluster, "resume", tmp_path, num_ps=1, num_workers=1)
    assert resumed == {"steps": 66, "shards": 1}
    changes = embedps.follow(tmp_path / "run")
    assert changes is not None


@pytest.mark.parametrize("wanted", [
    ("outside", "must be made in the scope of the ParameterServerStrategy"),
    ("settings", "table 'id' must have the same settings in each embedps.Embeddings of a cluster "
     "but has seed 0 and 3"),
    ("ended", "a worker's dataset ended before the last scheduled step: repeat() it"),
    ("no tensor", "found return value of type object, which is not a Tensor"),
])  # fmt: skip
def test_a_mistake_is_named_in_a_line(mistakes: Any, wanted: tuple[str, str]) -> None:
    name, text = wanted
    assert text in mistakes[name]
    assert "\n" not in mistakes[name]


@pytest.fixture(scope="module")
def mistakes(cluster: StockCluster) -> Any:
    return found_by(cluster, "mistakes", Path())


def test_rows_learn_once_from_the_steps_of_killed_workers(
    cluster: StockCluster, tmp_path: Path
) -> None:
    found = found_by(cluster, "kills", tmp_path)
    assert found == {"learned": [240.0], "steps": 240, "killed": 2}
