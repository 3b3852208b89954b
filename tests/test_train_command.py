"""The commands as a user runs them: real processes, signals, sockets and files."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.lease import read_leases
from embedps.cluster.local_processes import _free_ports
from embedps.data.dataset import Dataset
from tests.builders import dataset_fixture, latest, read_tags, write_dataset
from tests.commands import (
    SMALL,
    evaluations_of,
    finish,
    processes_with,
    read_until,
    start,
    summary_of,
    tf_config,
    train,
    until,
    wait_until_gone,
)

pytestmark = pytest.mark.multiprocess

OWN_MODEL = '''
"""A user's model: two dims, a multi-hot feature, a table that two features share."""

import dataclasses

import tensorflow as tf

from embedps import ClickModel, Embeddings, FeatureSpec, Recommender, TableSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    narrow: int = dataclasses.field(default=2, metadata={"help": "floats of a row of tags"})


class Own(ClickModel):
    def __init__(self, narrow, label):
        super().__init__(label=label)
        ids = TableSpec(name="ids", embedding_dim=5)
        tags = TableSpec(name="tags", embedding_dim=narrow)
        self.embeddings = Embeddings(
            [
                FeatureSpec(name="C1", table=ids),
                FeatureSpec(name="C2", table=ids),
                FeatureSpec(name="tags", table=tags, ragged=True, combiner="sqrtn"),
            ]
        )
        self.out = tf.keras.layers.Dense(1)

    def logits(self, features, *, training):
        number = tf.where(tf.math.is_nan(features["I2"]), 0.0, features["I2"])[:, None]
        rows = self.embeddings(features).values()
        return self.out(tf.concat([number, *rows], axis=1))[:, 0]


def make(config, dataset):
    return Recommender(build=lambda: Own(config.narrow, dataset.label))
'''


dataset = dataset_fixture(train=(3000, 2500, 501, 1), evaluation=(1500, 700))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """A finished run in one process and its evaluator."""
    model_dir = tmp_path_factory.mktemp("embedded") / "model"
    out = finish(train(dataset, model_dir, *SMALL, "--epochs=3", "--delta-secs=0.3"))
    assert "Held-out scores" in out
    return model_dir


def test_run_leaves_scores_and_a_summary(embedded, dataset):
    summary = summary_of(embedded)
    rows = dataset.split("train").rows
    assert summary["examples"] == 3 * rows
    assert summary["units"]["done"] == summary["units"]["total"]
    assert summary["units"]["repeated"] == 0
    assert summary["wall_secs"] > 0
    assert summary["examples_per_sec"] > 0
    assert set(summary["tables"]) == {"C1", "C2", "C3"}
    for kind in ("bases", "deltas"):
        assert {"count", "bytes"} <= summary["checkpoint"][kind].keys()
    assert summary["checkpoint"]["bases"]["count"] >= 1
    assert summary["config"]["train"]["batch_size"] == 64
    assert summary["config"]["train"]["seed"] == 0  # a default, as resolved
    assert summary["config"]["model"] == {
        "embedding_dim": 4,
        "bottom_mlp": [8],
        "top_mlp": [8],
        "sparse_optimizer": "rowwise_adagrad",
        "row_weight_decay": 0.0,
        "row_dtype": "float32",
        "slot_dtype": "float32",
        "min_count": 1,
        "min_count_expire_steps": 0,
        "admit_probability": 1.0,
        "row_ttl_steps": 0,
        "row_ttl_hours": 0,
        "max_table_rows": 0,
        "max_table_bytes": 0,
        "eviction_order": "least_recent",
        "min_row_norm": 0.0,
        "compute_dtype": "float32",
        "wire_dtype": "compute",
        "numeric_bins": 0,
        "numeric_waves": 0,
        "cross": [],
        "list_combiner": "mean",
    }
    assert {"python", "tensorflow", "pyarrow", "numpy", "embedps"} <= summary["versions"].keys()

    scores = evaluations_of(embedded)
    last = latest(embedded)
    assert last.final
    assert summary["evaluation"] == scores[-1]
    assert scores[-1]["step"] == last.step
    assert last.number - scores[-1]["number"] in (0, 1)  # then came a new base of the same rows
    assert scores[-1]["examples"] == dataset.split("eval").rows
    assert scores[-1]["normalized_entropy"] < 0.97
    assert scores[-1]["auc"] > 0.65
    assert [e["number"] for e in scores] == sorted({e["number"] for e in scores})
    assert read_leases(CheckpointDirectory(embedded)) == []
    logs = (embedded / "tensorboard").rglob("events.*")
    events = [path for path in logs if b"logloss" in (data := path.read_bytes()) or b"rows" in data]
    assert {p.parent.name for p in events} == {"train", "tables", "eval"}
    assert processes_with(str(embedded)) == {}


@pytest.mark.slow
def test_rerun_of_a_finished_run_does_nothing(embedded, dataset):
    manifest, scores, summary = latest(embedded), evaluations_of(embedded), summary_of(embedded)
    out = finish(train(dataset, embedded, *SMALL, "--epochs=3", "--delta-secs=0.3"))
    assert out.splitlines()[-1].startswith("done: ")
    assert "resumes" not in out
    again = summary_of(embedded)
    for measured in ("wall_secs", "examples_per_sec", "training", "checkpoint"):
        assert again[measured] == summary[measured], measured
    assert latest(embedded) == manifest
    assert evaluations_of(embedded) == scores
    assert summary_of(embedded)["evaluation"] == scores[-1]


@pytest.mark.slow
def test_evaluate_once_gives_the_same_scores_on_other_shards(embedded, dataset, tmp_path):
    expected = evaluations_of(embedded)[-1]
    running = [
        start(
            "embedps.evaluate",
            f"--model-dir={embedded}",
            f"--data={dataset.directory}",
            f"--num-shards={n}",
            "--once",
        )
        for n in (2, 5)
    ]
    for process in running:
        finish(process)
    found = evaluations_of(embedded)[-2:]
    for scores in found:
        assert scores["step"] == expected["step"]
        assert scores["number"] - expected["number"] in (0, 1)
        assert scores["auc"] == pytest.approx(expected["auc"], abs=1e-6)
        assert scores["logloss"] == pytest.approx(expected["logloss"], abs=1e-6)


@pytest.mark.slow
def test_sigterm_then_sigkill_then_a_rerun_to_the_end(tmp_path, dataset):
    """One run in three processes, on 2, 2 and 3 shards; the last two start from a checkpoint."""
    model_dir = tmp_path / "m"
    fields = (*SMALL, "--eval=none", "--epochs=400", "--delta-secs=0.2", "--log-secs=0.05")

    process = train(dataset, model_dir, *fields, "--num-shards=2", "--num-workers=2")
    read_until(process, " s ago")  # a checkpoint was committed
    process.send_signal(signal.SIGTERM)
    out = finish(process)
    assert "stopped; run the same command again to resume" in out
    first = summary_of(model_dir)
    assert not first["finished"]
    assert 0 < first["units"]["done"] < first["units"]["total"]
    stopped = latest(model_dir)
    assert not stopped.final
    assert stopped.ledger["doing"] == []
    assert stopped.ledger["prefix"] + len(stopped.ledger["beyond"]) == first["units"]["done"]

    process = train(dataset, model_dir, *fields, "--num-shards=2", "--num-workers=2")
    while latest(model_dir).number == stopped.number:
        read_until(process, "units ")
    process.kill()
    process.communicate()
    killed = latest(model_dir)
    assert killed.number > stopped.number

    ledger = killed.ledger
    last_unit = max([ledger["prefix"], *ledger["beyond"], *ledger["doing"]])
    epochs = last_unit // ledger["units_per_epoch"] + 1
    assert epochs < 400
    finish(train(dataset, model_dir, *fields, f"--epochs={epochs}", "--num-shards=3"))
    last = summary_of(model_dir)
    assert last["finished"]
    assert last["examples"] == epochs * dataset.split("train").rows
    assert last["units"]["done"] == last["units"]["total"]
    repeated = killed.ledger["repeated"] + len(killed.ledger["doing"])
    assert last["units"]["repeated"] == repeated
    final = latest(model_dir)
    assert final.final
    assert final.num_shards == 3
    assert (final.ledger["prefix"], final.ledger["beyond"]) == (last["units"]["total"], [])


@pytest.mark.slow
def test_ctrl_c_ends_training_in_good_order_and_its_evaluator(tmp_path, dataset):
    model_dir = tmp_path / "m"
    fields = (*SMALL, "--epochs=400", "--delta-secs=0.2", "--log-secs=0.05")
    process = train(dataset, model_dir, *fields)
    read_until(process, " s ago")
    until(lambda: "embedps.evaluate" in str(processes_with(str(model_dir))))
    process.send_signal(signal.SIGINT)
    out = finish(process)
    assert "stopped; run the same command again to resume" in out
    assert not latest(model_dir).final
    wait_until_gone(str(model_dir))


@pytest.mark.slow
def test_evaluator_ends_with_a_trainer_that_is_killed(tmp_path, dataset):
    model_dir = tmp_path / "m"
    process = train(dataset, model_dir, *SMALL, "--epochs=400", "--log-secs=0.05")
    read_until(process, "units ")
    until(lambda: len(processes_with(str(model_dir))) >= 2)
    process.kill()
    process.communicate()
    wait_until_gone(str(model_dir))


@pytest.mark.slow
def test_user_trains_a_module_of_their_own(tmp_path):
    dataset = write_dataset(
        tmp_path / "data", train=(3000, 2500, 501, 1), evaluation=(1500, 700), whole=True
    )
    package = tmp_path / "shop"
    package.mkdir()
    (package / "ranker.py").write_text(OWN_MODEL)
    (tmp_path / "run.toml").write_text(
        'model = "shop.ranker"\nnarrow = 3\nepochs = 2\nbatch_size = 64\nunit_rows = 512\n'
        "sparse_learning_rate = 0.2\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = train(
        dataset, tmp_path / "m", f"--config={tmp_path}/run.toml", "--epochs=3", PYTHONPATH=path
    )
    finish(process)
    summary = summary_of(tmp_path / "m")
    assert summary["config"]["model"] == {"narrow": 3}
    assert summary["config"]["train"]["epochs"] == 3
    assert set(summary["tables"]) == {"ids", "tags"}
    assert {t["name"]: t["dim"] for t in latest(tmp_path / "m").tables} == {"ids": 5, "tags": 3}
    assert summary["evaluation"]["examples"] == dataset.split("eval").rows
    assert summary["evaluation"]["auc"] > 0.6


def test_local_cluster_trains_as_well_as_one_process(tmp_path, embedded, dataset):
    model_dir = tmp_path / "m"
    flags = ("--epochs=3", "--delta-secs=0.5", "--num-ps=2", "--num-workers=2")
    out = finish(train(dataset, model_dir, *SMALL, *flags))
    summary = summary_of(model_dir)
    assert summary["finished"], out
    assert summary["examples"] == 3 * dataset.split("train").rows
    last = latest(model_dir)
    assert last.num_shards == 2
    assert {f.path.rsplit("/", 1)[1] for f in last.chain[0].files} == {
        "shard-0-of-2.arrow",
        "shard-1-of-2.arrow",
    }
    one = summary_of(embedded)
    assert summary["tables"] == one["tables"]
    # 1500 examples of each epoch are in flight at once, of 6000: not the same, but as good.
    assert summary["evaluation"]["auc"] == pytest.approx(one["evaluation"]["auc"], abs=0.03)
    stale = summary["staleness"]
    steps = last.step * 2  # on each server
    assert sum(worker["steps"] for worker in stale.values()) == steps
    assert set(stale) <= {"0", "1"}
    assert max(worker["most"] for worker in stale.values()) < last.step
    tags = read_tags(model_dir / "tensorboard" / "tables")
    assert {f"staleness/worker_{worker}" for worker in stale} <= tags
    for task in ("ps-0", "ps-1", "worker-0", "worker-1"):
        assert "serves at" in (model_dir / "logs" / f"{task}.log").read_text()
    wait_until_gone(str(model_dir))


@pytest.fixture
def tasks() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended with the test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_cluster_of_tf_config_is_started_in_any_order(tmp_path, dataset, tasks):
    """The same command on every machine, a server by its own module, the evaluator outside."""
    model_dir = tmp_path / "m"
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(4)]
    jobs = ("chief", "worker", "ps", "evaluator")  # the evaluator does not serve
    cluster: dict[str, Sequence[str]] = {
        job: [address] for job, address in zip(jobs, addresses, strict=True)
    }
    fields = (*SMALL, "--epochs=2", "--eval=none")
    chief = train(dataset, model_dir, *fields, TF_CONFIG=tf_config(cluster, "chief"))
    worker = train(dataset, model_dir, *fields, TF_CONFIG=tf_config(cluster, "worker"))
    ps = start("embedps.server", TF_CONFIG=tf_config(cluster, "ps"))
    tasks += [chief, worker, ps]
    read_until(worker, f"worker 0 serves at {addresses[1]}")
    read_until(ps, f"ps 0 serves at {addresses[2]}")
    finish(chief)
    assert summary_of(model_dir)["finished"]
    assert worker.poll() is None  # they serve until they are ended
    assert ps.poll() is None
    evaluator = start("embedps.evaluate", f"--model-dir={model_dir}", f"--data={dataset.directory}")
    tasks.append(evaluator)
    finish(evaluator)
    (scores,) = evaluations_of(model_dir)
    assert scores["number"] == latest(model_dir).number
    assert scores["auc"] > 0.6


def test_server_says_that_its_address_is_taken(tasks):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = start("embedps.server", TF_CONFIG=tf_config({"ps": [address]}, "ps"))
        tasks.append(process)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"embedps: ps 0 cannot serve at {address}" in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.slow
def test_real_clicks_are_learnt_better_than_their_base_rate(tmp_path, samples):
    """Criteo's own rows: a small sample, so that no more than the base rate is asked for."""
    data = tmp_path / "set"
    finish(
        start(
            "embedps.pipelines.criteo",
            f"--input={samples}/criteo_kaggle_12768.tsv.gz",
            f"--output={data}",
            "--num-shards=2",
        )
    )
    dataset = Dataset.open(data)
    out = finish(
        train(
            dataset,
            tmp_path / "m",
            "--epochs=3",
            "--sparse-learning-rate=0.005",
            "--batch-size=128",
            "--unit-rows=2048",
            "--bottom-mlp=32",
            "--top-mlp=32",
            "--embedding-dim=8",
        )
    )
    scores = summary_of(tmp_path / "m")["evaluation"]
    assert scores["examples"] == dataset.split("eval").rows
    assert scores["normalized_entropy"] < 1, out
    assert scores["auc"] > 0.6
