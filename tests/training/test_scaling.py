"""`embedps scale --ps`: another cluster takes the place of a run's, and nothing is lost."""

import os
import re
import signal
from pathlib import Path

import pytest

from benchmarks.row_visits import visits, write_dataset
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.verify import verify
from embedps.data.dataset import Dataset
from tests.builders import dataset_fixture
from tests.commands import (
    finish,
    processes_with,
    read_until,
    start,
    summary_of,
    train,
    until,
    wait_until_gone,
)
from tests.training.same_bits import assert_same_checkpoint

pytestmark = pytest.mark.multiprocess

FLAGS = (
    *("--model=benchmarks.row_visits", "--batch-size=64", "--unit-rows=1024", "--hidden=4"),
    *("--embedding-dim=2", "--delta-secs=0.5", "--log-secs=0.5", "--server-timeout-secs=4"),
    "--max-unit-deaths=1000",  # the tests kill, and no unit
)
LOCAL = ("--num-ps=2", "--num-workers=2", "--eval=none", "--epochs=400")
PAUSE = re.compile(
    r": [\d.]+ s from the last unit to the next one \([\d.]+ s to save, [\d.]+ s to load "
)


dataset = dataset_fixture(write_dataset, train=(9000, 9000, 2000), evaluation=(2000,))


def ask(model_dir: Path, *flags: str) -> str:
    """Asks a run that trains, and waits for its answer."""
    return finish(start("embedps.scale", str(model_dir), *flags))


def finish_in_one_process(dataset: Dataset, model_dir: Path) -> int:
    """Ends with the epoch that was reached; returns how many there are then."""
    units = summary_of(model_dir)["units"]
    epochs = -(-units["done"] // (units["total"] // 400))
    finish(train(dataset, model_dir, *FLAGS, "--eval=none", f"--epochs={epochs}"))
    summary = summary_of(model_dir)
    assert summary["finished"]
    directory = CheckpointDirectory(model_dir)
    assert not verify(directory, directory.numbers()[-1:]).problems
    wait_until_gone(str(model_dir))
    return epochs


def servers_of(model_dir: Path) -> set[int]:
    return {*processes_with(f"{model_dir}/logs/ps-")}


def test_run_goes_on_with_other_servers_and_workers_and_visits_each_row_once(tmp_path, dataset):
    model_dir = tmp_path / "m"
    run = train(dataset, model_dir, *FLAGS, *LOCAL)
    read_until(run, "delta")
    said = ask(model_dir, "--ps=3")
    assert "the run has 3 parameter servers and 2 workers instead of 2 and 2: " in said
    assert PAUSE.search(said)
    assert said.endswith(", 0 units and 0 steps lost\n")
    assert len(servers_of(model_dir)) == 3
    said = ask(model_dir, "--ps=1", "--workers=1")
    assert "the run has 1 parameter server and 1 worker instead of 3 and 2: " in said
    assert len(servers_of(model_dir)) == 1
    read_until(run, "delta")
    threads = [path.read_text() for path in Path(f"/proc/{run.pid}/task").glob("*/comm")]
    named = "grpcpp_sync_server"[:15]  # what Linux keeps of a thread's name
    assert sum(named in name for name in threads) == 1  # it has its first server still
    run.terminate()
    out = finish(run)
    assert "Traceback" not in out
    summary = summary_of(model_dir)
    scalings = summary["scalings"]
    assert [each["num_ps"] for each in scalings] == [[2, 3], [3, 1]]
    assert [each["num_workers"] for each in scalings] == [[2, 2], [2, 1]]
    assert all(each["units_lost"] == each["steps_lost"] == 0 for each in scalings)
    for each in scalings:
        assert each["pause_secs"] >= each["saved_secs"] + each["restored_secs"] > 0
        assert each["loaded"] > 0
    assert summary["recoveries"] == []
    assert summary["units"]["repeated"] == 0
    epochs = finish_in_one_process(dataset, model_dir)
    counts = visits(model_dir, dataset.split("train").rows)
    assert {*counts.tolist()} == {epochs}
    assert summary_of(model_dir)["scalings"] == scalings  # checkpoints have them


@pytest.mark.slow
def test_run_in_step_that_changes_its_servers_has_the_bits_of_a_calm_one(tmp_path):
    """Scores inline too, on the workers of the time."""
    dataset = write_dataset(tmp_path / "data", train=(40_000, 40_000), evaluation=(2000,))
    flags = (*FLAGS, "--num-workers=2", "--eval=inline", "--epochs=6", "--sync=full")
    calm = train(dataset, tmp_path / "calm", *flags, "--num-ps=2")
    finish(calm)
    run = train(dataset, tmp_path / "m", *flags, "--num-ps=2")
    read_until(run, "delta")
    ask(tmp_path / "m", "--ps=3")
    ask(tmp_path / "m", "--ps=1")
    finish(run)
    assert len(summary_of(tmp_path / "m")["scalings"]) == 2
    assert_same_checkpoint(tmp_path / "m", tmp_path / "calm", num_scores=6)


@pytest.mark.slow
def test_run_in_step_gets_another_number_of_workers(tmp_path, dataset):
    model_dir = tmp_path / "m"
    run = train(dataset, model_dir, *FLAGS, *LOCAL, "--sync=full")
    read_until(run, "delta")
    assert "0 units and 0 steps lost" in ask(model_dir, "--workers=3")
    read_until(run, "delta")
    run.terminate()
    finish(run)
    assert summary_of(model_dir)["sync"]["workers"] == 3
    epochs = finish_in_one_process(dataset, model_dir)
    assert {*visits(model_dir, dataset.split("train").rows).tolist()} == {epochs}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "when"),
    [
        ("client", "prepared"),
        ("old server", "prepared"),
        ("new server", "replaced"),
        ("Ctrl-C", "replaced"),
    ],
)
def test_run_ends_in_a_right_state_whoever_dies_during_a_change(tmp_path, dataset, who, when):
    """Each row is visited; who is asked gets an answer that is true."""
    model_dir = tmp_path / "m"
    run = train(dataset, model_dir, *FLAGS, *LOCAL)
    read_until(run, "delta")
    old = servers_of(model_dir)
    asker = start("embedps.scale", str(model_dir), "--ps=3", "--wait-secs=60")
    until(lambda: len(servers_of(model_dir)) > len(old))
    new = servers_of(model_dir) - old
    if when == "replaced":
        until(lambda: not old & servers_of(model_dir))
    if who == "client":
        run.kill()
        run.wait()
    elif who == "Ctrl-C":
        run.send_signal(signal.SIGINT)
    else:
        victims = old if who == "old server" else new
        for pid in victims & servers_of(model_dir):
            os.kill(pid, signal.SIGKILL)
            break
    if who in ("client", "Ctrl-C"):
        out, _ = run.communicate(timeout=200)
        assert "Traceback" not in out
        asker.kill()
        asker.wait()
        wait_until_gone(str(model_dir))
        run = train(dataset, model_dir, *FLAGS, *LOCAL)
    else:
        said, refused = asker.communicate(timeout=200)
        if "lost a server" in said + refused:  # it begins anew: to end it before is no run's end
            read_until(run, "resumes from checkpoint")
    read_until(run, "units ", "delta")
    run.terminate()
    out, _ = run.communicate(timeout=200)
    assert run.returncode == 0
    assert "Traceback" not in out
    epochs = finish_in_one_process(dataset, model_dir)
    counts = visits(model_dir, dataset.split("train").rows)
    assert counts.min() >= epochs
    repeats = int(counts.sum()) - epochs * len(counts)
    assert repeats <= summary_of(model_dir)["units"]["repeated"] * 1024
