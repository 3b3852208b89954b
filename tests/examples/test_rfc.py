"""The RFC's programs train rows of embedps on one cluster, with few changed lines."""

from __future__ import annotations

import importlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from tests.builders import ROOT
from tests.commands import finish, read_until, run, run_program, start, until
from tests.serving.server.builders import ask_rest
from tests.stock_cluster import StockCluster, stock_cluster

PROGRAMS = ROOT / "examples" / "rfc"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockCluster]:
    with stock_cluster(tmp_path_factory.mktemp("servers")) as made:
        yield made


def numbers(text: str, name: str) -> list[float]:
    """Finds the numbers after a word."""
    return [
        float(each)
        for found in re.findall(name + r"((?: \d+\.\d+)+)", text)
        for each in found.split()
    ]


def served_version(url: str) -> int:
    """The newest checkpoint that is served."""
    _, found = ask_rest(url)
    return int(found["model_version_status"][0]["version"])


@pytest.mark.parametrize("name", ["tutorial_loop.py", "tutorial_fit.py"])
def test_the_tutorial_has_at_most_five_lines_of_ours(name: str) -> None:
    code = (PROGRAMS / name).read_text().split('"""', 2)[2]
    assert 2 <= len([line for line in code.splitlines() if "embedps" in line]) <= 5


@pytest.mark.multiprocess
def test_the_tutorials_loop_learns(cluster: StockCluster) -> None:
    output = cluster.run(PROGRAMS / "tutorial_loop.py")
    assert numbers(output, "accuracy")[-1] == 1.0
    assert numbers(output, "final loss")[0] < 0.1
    assert "done True" in output


@pytest.mark.multiprocess
def test_the_tutorials_fit_learns_and_saves(cluster: StockCluster, tmp_path: Path) -> None:
    output = cluster.run(PROGRAMS / "tutorial_fit.py", tmp_path)
    losses = numbers(output, "loss")
    assert losses[-1] < 0.01 < losses[0]
    saved = CheckpointDirectory(tmp_path / "checkpoints").latest()
    assert saved is not None
    assert saved.step == 100


@pytest.mark.multiprocess
def test_the_tutorial_is_served_verified_and_exported_while_it_trains(
    cluster: StockCluster, tmp_path: Path
) -> None:
    """By commands that are told the program's module."""
    run_dir, path = tmp_path / "checkpoints", str(PROGRAMS)
    flags = ("--model-dir", str(run_dir), "--model", "tutorial_fit")
    ids = {"inputs": {"id": [0, 1, 2, 3]}}
    with cluster.running(PROGRAMS / "tutorial_fit.py", tmp_path, EPOCHS="100000") as trains:
        directory = CheckpointDirectory(run_dir)
        until(lambda: directory.latest() is not None)
        server = start(
            "embedps.serve",
            *flags,
            *("--name", "tutorial", "--port", "0", "--rest-port", "0"),
            PYTHONPATH=path,
        )
        url = f"{read_until(server, 'serves ').split()[-1]}/v1/models/tutorial"
        first = served_version(url)
        until(lambda: served_version(url) > first)
        code, found = ask_rest(f"{url}:predict", ids)
        assert code == 200
        assert np.ravel(found["outputs"]).tolist() == pytest.approx([0, 1, 0, 1], abs=0.2)
        output = ("--output", tmp_path / "export")
        run_program("-m", "embedps.export", *flags, *output, PYTHONPATH=path)
        for command in ("verify", "stats"):
            run_program("-m", "embedps.checkpoint", command, run_dir)
        assert trains.poll() is None
    server.send_signal(signal.SIGTERM)
    finish(server)
    (exported,) = (tmp_path / "export").iterdir()
    served = tf.saved_model.load(str(exported)).signatures["serving_default"]
    (scores,) = served(id=tf.range(4, dtype=tf.int64)).values()
    assert np.ravel(scores).tolist() == pytest.approx([0, 1, 0, 1], abs=0.2)


def test_the_tutorials_fit_runs_without_a_cluster(tmp_path: Path) -> None:
    output = run_program(PROGRAMS / "tutorial_fit.py", tmp_path, timeout_secs=100)
    assert numbers(output, "loss")[-1] < 0.01


def test_the_tutorials_fit_under_mirrored_strategy_is_told_the_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    tutorial = importlib.import_module("tutorial_fit")
    refused = pytest.raises(
        embedps.errors.UsageError, match="--replicas N --mirrored does the same"
    )
    with refused, tf.distribute.MirroredStrategy(["cpu:0"]).scope():
        tutorial.build()


@pytest.mark.multiprocess
def test_a_tfrs_model_learns(cluster: StockCluster) -> None:
    losses = numbers(cluster.run(PROGRAMS / "two_tower.py"), "loss")
    assert losses[-1] < losses[0]


@pytest.mark.multiprocess
def test_others_read_the_rows_while_they_train(cluster: StockCluster, tmp_path: Path) -> None:
    output = cluster.run(PROGRAMS / "train_while_reading.py", tmp_path)
    steps = [int(each) for each in re.findall(r"reader: \d+ rows as of step (\d+)", output)]
    assert len(steps) > 1
    assert steps[-1] == 120


@pytest.mark.slow
@pytest.mark.multiprocess
def test_stock_servers_serve_a_program_that_imports_embedps(tmp_path: Path) -> None:
    done = run(PROGRAMS / "on_this_machine.py", PROGRAMS / "tutorial_loop.py", timeout=None)
    assert numbers(done.stdout, "accuracy")[-1] > 0.9
