"""The RFC's programs train rows of embedps on one cluster, with few changed lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from tests.builders import ROOT
from tests.commands import run, run_program
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


def test_the_tutorials_fit_runs_without_a_cluster(tmp_path: Path) -> None:
    output = run_program(PROGRAMS / "tutorial_fit.py", tmp_path, timeout_secs=100)
    assert numbers(output, "loss")[-1] < 0.01


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
