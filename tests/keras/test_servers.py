"""Stock programs of tf.distribute train rows on the parameter servers of a cluster."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedps

import tensorflow as tf  # isort: skip

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_named
from embedps.constants import CHECKPOINT_VERSION
from tests.builders import read_split, write_dataset
from tests.commands import environment, run_program
from tests.keras.models import dlrm, features
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
    for each in found:
        assert each["cluster"] == pytest.approx(each["plain"], abs=1e-5)
        assert each["plain"][-1] < 0.01
        # The first step's read is in its server's message; the second waits for the first's update.
        assert each["uses"] == [["EmbedpsPack"], ["MatMul"]]
        assert each["messages"] == 3 + 2 + 3 + 1  # of rows and of the network; gradients of both
    assert [each["told"] for each in found] == [[], ["/job:ps/replica:0/task:0/device:CPU:0"]]


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
    assert resumed.pop("learned") > 0.01
    assert resumed == {"steps": 66, "shards": 1, "steps again": 5}
    changes = embedps.follow(tmp_path / "run")
    assert changes is not None


def test_partitioned_variables_are_stored_whole(cluster: StockCluster, tmp_path: Path) -> None:
    first, second = (found_by(cluster, "partitioned", tmp_path) for _ in range(2))
    assert first["parts"] == second["parts"] == [[2, 1, 0], [2, 1, 1]]
    assert first["begun"] == [[0.5]] * 4
    assert second["begun"] == first["kernel"] != second["kernel"]
    directory = CheckpointDirectory(tmp_path / "run")
    last = directory.latest()
    assert last is not None
    assert last.dense is not None
    names = ["layer_with_weights-1/kernel", "layer_with_weights-1/bias"]
    slots = ["iterations", *(f"accumulators/{name}" for name in ("embeddings", *names))]
    stored, arrays = read_named(directory.file(last.dense), names)
    assert stored == [*names, *(f"optimizer/{slot}" for slot in slots)]
    assert arrays[names[0]].tolist() == second["kernel"]
    resumed = found_by(cluster, "resume", tmp_path, num_ps=1, num_workers=1)
    assert resumed["steps"] == 41


def test_policies_of_tables_act_on_a_cluster(cluster: StockCluster, tmp_path: Path) -> None:
    found = found_by(cluster, "policies", tmp_path)
    assert min(found.pop("rates")) > 0.85
    assert found == {"ids": [1, 4], "aged": 1, "admitted": 3, "waiting": 1}


def test_a_run_on_a_cluster_is_loaded_as_any_other(cluster: StockCluster, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", train=(1024, 1024), evaluation=(512,))
    found = found_by(cluster, "served", tmp_path)
    recommender = embedps.Recommender(build=lambda: dlrm(embedps.Embeddings(features())))
    loaded = embedps.load(tmp_path / "run", data=tmp_path / "data", recommender=recommender)
    records = read_split(data, "eval").slice(0, 8).select(loaded.columns)
    scores = {name: np.ravel(each).tolist() for name, each in loaded.predict(records).items()}
    assert scores["score"] == pytest.approx(found["score"], abs=1e-5)


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


def test_several_clients_have_tables_on_the_same_servers_and_read_them(
    cluster: StockCluster, tmp_path: Path
) -> None:
    found = found_by(cluster, "beside", tmp_path)
    (first, second), (read, read_later) = found["trained"], found["read"]
    assert read["rows"] == first
    assert read_later == second != first
    tables = ["fast", "still", "id"]
    assert (read["tables"], read["ids"]) == (tables, [0, 1, 2, 3])
    assert read["absent"] == [[0.0] * 4]
    assert found["rows"] == {"fast": 4, "still": 0, "id": 4}
    assert (found["other"], found["steps"]) == ({"id": 2}, 2)
    assert found["entries"] == 1  # not those of the killed client at its address
    assert "table 'id' must be of one client to be read" in read["several"]
    assert f"there is no table 'none': the tables are {tables}" in read["unknown"]
    assert "the program of nobody:1 must train tables on the servers" in read["nobody"]
    assert "must be called in a process that is connected to no other servers" in read["strategy"]


def test_rows_learn_once_from_the_steps_of_killed_workers(
    cluster: StockCluster, tmp_path: Path
) -> None:
    found = found_by(cluster, "kills", tmp_path)
    assert found == {"learned": [1200.0], "steps": 1200}


@pytest.mark.slow
def test_fit_goes_on_when_a_worker_is_killed(cluster: StockCluster, tmp_path: Path) -> None:
    assert found_by(cluster, "fit_without_a_worker", tmp_path) == {"steps": 80}


@pytest.mark.slow
def test_fit_ends_with_a_server_and_resumes_on_others(tmp_path: Path) -> None:
    with stock_cluster(tmp_path / "first", is_kept=False) as cluster:
        lost = found_by(cluster, "fit_without_a_server", tmp_path)
    assert lost["error"].startswith("UnavailableError")
    with stock_cluster(tmp_path / "second") as cluster:
        resumed = found_by(cluster, "resume", tmp_path)
    assert (resumed["steps"], resumed["shards"]) == (41, 2)


@pytest.mark.slow
def test_a_loop_raises_that_a_server_is_gone(tmp_path: Path) -> None:
    with stock_cluster(tmp_path, is_kept=False) as cluster:
        lost = found_by(cluster, "loop_without_a_server", tmp_path)
    assert "UnavailableError" in lost["error"]


STOCK_SERVER = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
task = {"job_name": resolver.task_type, "task_index": resolver.task_id}
tf.distribute.Server(resolver.cluster_spec(), protocol="grpc", **task).join()
"""


def test_a_task_without_our_kernels_or_of_another_version_is_named(tmp_path: Path) -> None:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    jobs = ("chief", "ps", "worker")
    cluster = {job: [address] for job, address in zip(jobs, addresses, strict=True)}
    config = {
        job: json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}}) for job in jobs
    }
    other = (  # as other packages would have them
        "import embedps.constants; from tensorflow.python.client import pywrap_tf_session as tf_;"
        "embedps.__version__ = '9.9'; embedps.constants.CHECKPOINT_VERSION = 9;"
        "tf_.get_version = lambda: '2.99.0'"
    )
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", before + STOCK_SERVER], env=environment(TF_CONFIG=config[job])
        )
        for job, before in (("ps", ""), ("worker", other))
    ]
    try:
        program = ("-m", "tests.keras.servers_program", "foreign", tmp_path)
        output = run_program(*program, TF_CONFIG=config["chief"], timeout_secs=100)
    finally:
        for server in servers:
            server.kill()
            server.wait()
    found = json.loads(output.splitlines()[-1])
    assert found["layer"].startswith("ClusterError: ps 0 must have the kernels of embedps")
    assert found["engine"] == found["layer"]
    assert found["worker"] == (
        f"ClusterError: worker 0 must run embedps {embedps.__version__}, TensorFlow "
        f"{tf.__version__} and checkpoint format {CHECKPOINT_VERSION}, as this process does, but "
        "runs embedps 9.9, TensorFlow 2.99.0 and checkpoint format 9: start it with the same "
        "versions"
    )
