"""Whoever dies, hangs or is told to end: every row is visited, the repeats are counted."""

import itertools
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.row_visits import visits, write_dataset
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.tools.verify import verify
from embedps.cluster.local_processes import _free_ports
from embedps.data.dataset import Dataset
from embedps.tables.ops import route
from tests import forked
from tests.builders import ROOT, dataset_fixture, latest
from tests.commands import (
    environment,
    processes_with,
    summary_of,
    tf_config,
    until,
    wait_until_gone,
)
from tests.training.same_bits import assert_same_values

pytestmark = pytest.mark.multiprocess

UNIT_ROWS = 1024
BATCH_ROWS = 64
MODELS = {
    "network": ("--model=benchmarks.row_visits",),
    # The visits before the one that admits a row are not in its frequency.
    "counted": ("--model=benchmarks.row_visits", "--min-count=3"),
    # Two tasks, BatchNormalization, Keras metrics, and an optimizer whose state is assigned.
    "two tasks": ("--model=tests.two_tasks", "--dense-optimizer=adamw"),
}
FLAGS = (
    *(f"--batch-size={BATCH_ROWS}", f"--unit-rows={UNIT_ROWS}"),
    *("--delta-secs=0.5", "--log-secs=0.5", "--hidden=4", "--embedding-dim=2"),
    "--max-unit-deaths=1000",  # the tests kill, and no unit
    "--keep-secs=3600",  # each that is resumed from can be read at a test's end
)
LOCAL = ("--num-ps=2", "--num-workers=2", "--server-timeout-secs=4")
BY_RESTART = ("--no-recover-in-place",)
IN_FLIGHT = 2 * 2  # units: two a worker
EPOCHS = 400  # more than the fastest machine is done with before the last of a test's losses


dataset = dataset_fixture(write_dataset, train=(9000, 9000, 2000), evaluation=(2000,))


class Program:
    """A running command, whose output can be waited on."""

    def __init__(self, module: str, *arguments: str, **env: str) -> None:
        self.process = forked.start(
            ["-m", module, *arguments],
            cwd=ROOT,
            env=environment(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._lines: list[str] = []
        self._more = threading.Condition()
        self._ended = False
        self._seen = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self._lines.append(line)
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def wait_for(self, text: str, secs: float = 200) -> str:
        """The next line that has a text, after those that were waited for before."""
        with self._more:
            found: list[int] = []

            def there() -> bool:
                found[:] = [i for i, x in enumerate(self._lines) if i >= self._seen and text in x]
                return bool(found) or self._ended

            assert self._more.wait_for(there, secs), f"no {text!r} in\n{self.output}"
            assert found, f"ended before {text!r}:\n{self.output}"
            self._seen = found[0] + 1
            return self._lines[found[0]]

    def stop(self) -> str:
        """Tells it to end, and waits for that."""
        self.process.send_signal(signal.SIGTERM)
        return self.finish()

    def finish(self, code: int = 0) -> str:
        assert self.process.wait(200) == code, self.output
        with self._more:
            assert self._more.wait_for(lambda: self._ended, 30)
        return self.output

    @property
    def output(self) -> str:
        told = [line for line in self._lines if not line.startswith("units ")]
        return "".join([*told[-60:], *self._lines[-9:]])

    @property
    def resumed_from(self) -> list[int]:
        """The checkpoints that it or one of its servers restored."""
        return [int(n) for n in re.findall(r"resumes from checkpoint (\d+)", "".join(self._lines))]

    @property
    def begun_from(self) -> list[int]:
        """Those of them that it began from, with all servers and a new ledger."""
        lines = [line for line in self._lines if "parameter server" not in line]
        return [int(n) for n in re.findall(r"resumes from checkpoint (\d+)", "".join(lines))]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.close()


def train(
    programs: list[Program], dataset: Dataset, model_dir: Path, *more: str, **env: str
) -> Program:
    where = (f"--data={dataset.directory}", f"--model-dir={model_dir}")
    if not any(flag.startswith("--model=") for flag in more):
        more = (*MODELS["network"], *more)
    programs.append(Program("embedps.train", *where, *FLAGS, *more, **env))
    return programs[-1]


def pid_of(model_dir: Path, what: str) -> int:
    """The process of a task of the run: "ps 0", "worker 1", or "evaluator"."""
    (pid,) = processes_with(f"{model_dir}/logs/{what.replace(' ', '-')}.log")
    return pid


def _not_done(units: Sequence[int], manifest: Manifest) -> set[int]:
    """Those that a checkpoint does not list as done."""
    return {u for u in units if u >= manifest.ledger["prefix"]} - set(manifest.ledger["beyond"])


def check(
    model_dir: Path,
    dataset: Dataset,
    programs: Sequence[Program],
    *,
    epochs: int,
    within_units: int,
    within_rows: int | None = None,
) -> dict[str, Any]:
    """All visited, repeats counted and within a bound, the checkpoint whole, nobody left.

    Beyond `within_units` are those in doubt: a checkpoint that a run begins from names the units
    begun before it was written, and a recovery in place counts those that a server may have in
    part. Of those in checkpoints that none resumes from, all but what is in flight must be done by
    the next. Where none was restored, attempts are repeated but only so many rows are visited
    again.
    """
    directory = CheckpointDirectory(model_dir)
    manifests = {n: directory.read(n) for n in directory.numbers()}
    resumed = [n for program in programs for n in program.resumed_from]
    begun_from = [n for program in programs for n in program.begun_from]
    partially_applied = sum(len(manifests[n].ledger["doing"]) for n in begun_from)
    for n, following in itertools.pairwise(sorted(manifests)):
        if n not in resumed:
            assert len(_not_done(manifests[n].ledger["doing"], manifests[following])) <= IN_FLIGHT
    summary = summary_of(model_dir)
    assert summary["finished"]
    assert summary["units"]["done"] == summary["units"]["total"]
    num_rows = dataset.split("train").rows
    counts = visits(model_dir, num_rows)
    assert counts.min() >= epochs
    repeats = int(np.sum(counts)) - epochs * num_rows
    repeated = summary["units"]["repeated"]
    for recovery in summary["recoveries"]:
        if recovery["in_place"]:
            partially_applied += recovery["repeated"]
        elif (n := recovery["checkpoint"]) is not None:
            assert recovery["repeated"] == len(manifests[n].ledger["doing"])
    assert repeats <= (repeated * UNIT_ROWS if within_rows is None else within_rows)
    assert repeated <= within_units + partially_applied
    assert not verify(directory, directory.numbers()[-1:]).problems
    wait_until_gone(str(model_dir))
    return summary


@pytest.mark.parametrize(
    "name",
    ["network", *(pytest.param(n, marks=pytest.mark.slow) for n in ("counted", "two tasks"))],
)
def test_run_goes_on_when_a_worker_is_killed(tmp_path, dataset, programs, name):
    """The short form of the next test, which also stops processes and tells them to end."""
    model_dir = tmp_path / "m"
    few = ("--num-ps=1", "--num-workers=2", "--server-timeout-secs=4", "--eval=none")
    model = MODELS[name]
    run = train(programs, dataset, model_dir, *model, *few, f"--epochs={EPOCHS}")
    run.wait_for("delta")
    lose(run, model_dir, "worker 0", signal.SIGKILL)
    run.stop()
    assert summary_of(model_dir)["worker_restarts"] == 1
    epochs = finish_in_one_process(programs, dataset, model_dir, *model, least=3)
    check(
        model_dir,
        dataset,
        programs,
        epochs=epochs - 2 * (name == "counted"),
        within_units=4,
        within_rows=BATCH_ROWS,
    )


@pytest.mark.slow
def test_run_outlives_workers_and_evaluator_that_are_killed_stopped_or_told_to_end(
    tmp_path, dataset, programs
):
    model_dir = tmp_path / "m"
    run = train(programs, dataset, model_dir, *LOCAL, f"--epochs={EPOCHS}")
    run.wait_for("delta")
    os.kill(pid_of(model_dir, "worker 0"), signal.SIGKILL)
    os.kill(pid_of(model_dir, "evaluator"), signal.SIGKILL)
    wait_until_joined(run, model_dir, "worker-0", 2)
    os.kill(pid_of(model_dir, "worker 1"), signal.SIGSTOP)
    wait_until_joined(run, model_dir, "worker-1", 2)  # killed for its silence, and started again
    os.kill(pid_of(model_dir, "worker 1"), signal.SIGTERM)
    run.wait_for("worker 1 was told to end: saving a checkpoint")
    wait_until_joined(run, model_dir, "worker-1", 3)
    assert "worker 1 ends, as it was told to" in (model_dir / "logs/worker-1.log").read_text()
    run.stop()
    summary = summary_of(model_dir)
    assert summary["worker_restarts"] == 3
    assert summary["evaluator_restarts"] == 1
    assert summary["recoveries"] == []
    attempts, done = summary["units"]["attempts"], summary["units"]["done"]
    begun = done + len(latest(model_dir).ledger["doing"])
    assert attempts - begun <= summary["units"]["repeated"] <= attempts
    epochs = finish_in_one_process(programs, dataset, model_dir)
    # At most two units of each worker's are in flight, and three workers were lost; a step that was
    # on its way then may have been applied in part.
    check(
        model_dir, dataset, programs, epochs=epochs, within_units=3 * 4, within_rows=3 * BATCH_ROWS
    )


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--max-staleness-steps=0", "--sync=full"])
def test_workers_that_wait_for_each_other_do_not_wait_for_ever_for_a_lost_one(
    tmp_path, dataset, programs, flag
):
    model_dir = tmp_path / "m"
    few = (*LOCAL, "--eval=none", flag)
    run = train(programs, dataset, model_dir, *few, f"--epochs={EPOCHS}")
    run.wait_for("delta")
    lose(run, model_dir, "worker 0", signal.SIGKILL)
    lose(run, model_dir, "worker 1", signal.SIGSTOP)  # killed for its silence, and started again
    run.wait_for("delta")
    run.stop()
    summary = summary_of(model_dir)
    assert summary["worker_restarts"] == 2
    stale = summary["staleness"].values()
    assert max(worker["most"] for worker in stale) == 0
    assert all(worker["histogram"]["0"] for worker in stale)
    epochs = finish_in_one_process(programs, dataset, model_dir)
    check(
        model_dir, dataset, programs, epochs=epochs, within_units=2 * 4, within_rows=2 * BATCH_ROWS
    )


@pytest.mark.slow
def test_many_asynchronous_workers_have_a_bound_unless_it_is_refused(tmp_path, dataset, programs):
    few = ("--num-ps=1", "--num-workers=5", "--eval=none", "--epochs=3")
    bounded = train(programs, dataset, tmp_path / "m", *few)
    bounded.wait_for("of 5 workers, 4 are in a step at once: more stale steps lose accuracy.")
    bounded.finish()
    stale = summary_of(tmp_path / "m")["staleness"].values()
    assert 1 <= max(worker["most"] for worker in stale) <= 3
    free = train(programs, dataset, tmp_path / "free", *few, "--max-staleness-steps=-1")
    assert "are in a step at once" not in free.finish()


@pytest.mark.slow
def test_hybrid_run_goes_on_when_a_worker_and_then_a_server_is_killed(tmp_path, dataset, programs):
    model_dir, few = tmp_path / "m", (*LOCAL, "--eval=none", "--sync=dense")
    run = train(programs, dataset, model_dir, *few, f"--epochs={EPOCHS}")
    run.wait_for("delta")
    lose(run, model_dir, "worker 1", signal.SIGKILL)
    run.wait_for("delta")
    os.kill(pid_of(model_dir, "ps 0"), signal.SIGKILL)
    run.wait_for(": going on from checkpoint ")
    run.wait_for("recovered: ")
    run.wait_for("delta")
    run.stop()
    summary = summary_of(model_dir)
    assert summary["sync"]["mode"] == "dense"
    assert len(summary["recoveries"]) == 1
    epochs = finish_in_one_process(programs, dataset, model_dir)
    check(model_dir, dataset, programs, epochs=epochs, within_units=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [("--num-workers=2",), ("--num-workers=3", "--backup-workers=1")], ids=["all", "backup"]
)
def test_steps_go_on_without_a_worker_that_is_killed_or_stopped(tmp_path, dataset, programs, more):
    """It rejoins; each row is visited, and each update is applied once."""
    model_dir = tmp_path / "m"
    # Inline scores end an epoch before the next begins: two visits of a row in one step are one
    # update, and would count as one.
    flags = (*LOCAL, "--eval=inline", "--sync=full", "--on-lost-worker=continue", *more)
    run = train(programs, dataset, model_dir, *flags, f"--epochs={EPOCHS}")
    run.wait_for("delta")
    lose(run, model_dir, "worker 0", signal.SIGKILL)
    lose(run, model_dir, "worker 1", signal.SIGSTOP)  # killed for its silence, and started again
    run.wait_for("delta")
    run.stop()
    summary = summary_of(model_dir)
    assert summary["worker_restarts"] == 2
    assert summary["recoveries"] == []
    workers = int(more[0][-1])
    assert summary["sync"]["workers"] == workers
    assert all(worker["histogram"]["0"] for worker in summary["staleness"].values())
    epochs = finish_in_one_process(programs, dataset, model_dir)
    check(model_dir, dataset, programs, epochs=epochs, within_units=2 * 4, within_rows=0)


@pytest.mark.slow
def test_worker_that_stops_as_the_first_scores_begin_is_replaced(tmp_path, dataset, programs):
    model_dir = tmp_path / "m"
    run = train(programs, dataset, model_dir, *LOCAL, f"--epochs={EPOCHS}", "--eval=inline")
    units = sum(-(-file.rows // UNIT_ROWS) for file in dataset.splits["train"].files)
    run.wait_for(f"units {units}/")
    lose(run, model_dir, "worker 1", signal.SIGSTOP)
    run.wait_for("step ")  # it is scored
    run.stop()


@pytest.mark.slow
def test_unit_of_a_worker_that_is_slow_at_the_end_is_applied_once(tmp_path, dataset, programs):
    model_dir = tmp_path / "m"
    patient = (*LOCAL, "--server-timeout-secs=100", "--eval=none")
    run = train(programs, dataset, model_dir, *patient, "--epochs=6")
    run.wait_for("units ")  # however long the first save takes, most units are left
    os.kill(pid_of(model_dir, "worker 1"), signal.SIGSTOP)  # within a unit, as good as always
    run.finish()
    summary = check(model_dir, dataset, programs, epochs=6, within_units=1, within_rows=0)
    assert summary["units"]["attempts"] == summary["units"]["done"] + 1


def wait_until_joined(run: Program, model_dir: Path, name: str, times: int) -> None:
    """Waits until so many processes of a run's server have had a client."""
    log = model_dir / "logs" / f"{name}.log"
    deadline = time.monotonic() + 180
    while log.read_text().count("has a client") < times:
        assert run.process.poll() is None, f"ended before {name} joined:\n{run.output}"
        assert time.monotonic() < deadline, f"{log.read_text()}\n{run.output}"
        time.sleep(0.05)


def lose(run: Program, model_dir: Path, worker: str, how: signal.Signals) -> None:
    """Sends a worker's first process a signal; waits until the second has had a client."""
    wait_until_joined(run, model_dir, worker.replace(" ", "-"), 1)  # it tells so after the client
    os.kill(pid_of(model_dir, worker), how)
    wait_until_joined(run, model_dir, worker.replace(" ", "-"), 2)


def cluster_of(
    programs: list[Program], *, num_ps: int, num_workers: int
) -> tuple[dict[str, Sequence[str]], Callable[..., Program]]:
    """Gives a cluster of free addresses, and a function that starts the server of a task."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(1 + num_ps + num_workers)]
    cluster: dict[str, Sequence[str]] = {
        "chief": addresses[:1],
        "ps": addresses[1 : 1 + num_ps],
        "worker": addresses[1 + num_ps :],
    }

    def serve(job: str, index: int = 0) -> Program:
        config = tf_config(cluster, job, index)
        programs.append(Program("embedps.server", "--grace-secs=10", TF_CONFIG=config))
        return programs[-1]

    return cluster, serve


def finish_in_one_process(
    programs: list[Program], dataset: Dataset, model_dir: Path, *more: str, least: int = 1
) -> int:
    """Trains to the end of the epoch that a run was in; returns how many epochs it then has.

    They are at least so many.
    """
    ledger = latest(model_dir).ledger
    last_unit = max([ledger["prefix"], *ledger["beyond"], *ledger["doing"]])
    epochs = max(least, int(last_unit // ledger["units_per_epoch"]) + 1)
    assert epochs < EPOCHS
    train(programs, dataset, model_dir, "--eval=none", f"--epochs={epochs}", *more).finish()
    return epochs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("counted", BY_RESTART),
        ("two tasks", BY_RESTART),
        ("counted", ()),
        ("counted", ("--sync=full",)),
        ("counted", ("--eval=inline",)),
        ("two tasks", ("--sync=dense",)),
    ],
)
def test_run_recovers_by_itself_from_parameter_servers_that_are_killed_stopped_or_told_to_end(
    tmp_path, dataset, programs, name, more
):
    model_dir, model = tmp_path / "m", MODELS[name]
    flags = (*LOCAL, f"--epochs={EPOCHS}", "--eval=none", *more)
    run = train(programs, dataset, model_dir, *model, *flags)
    run.wait_for("delta")
    for what, number in (("ps 1", signal.SIGKILL), ("ps 0", signal.SIGSTOP)):
        before = latest(model_dir).number
        os.kill(pid_of(model_dir, what), number)
        line = run.wait_for(": going on from checkpoint ")
        assert int(line.split("checkpoint ")[1].split(";")[0]) >= before
        run.wait_for("recovered: ")
        run.wait_for("delta")
    os.kill(pid_of(model_dir, "ps 1"), signal.SIGTERM)
    run.wait_for("ps 1 was told to end: saving a checkpoint")
    line = run.wait_for(": going on from checkpoint ")
    assert "0 units done since (0 steps, 0 examples) are " in line
    run.wait_for("recovered: ")
    assert "ps 1 ends, as it was told to" in (model_dir / "logs/ps-1.log").read_text()
    out = run.stop()
    killed, stopped, told = summary_of(model_dir)["recoveries"]
    assert [r["in_place"] for r in (killed, stopped, told)] == [more != BY_RESTART] * 3
    assert "parameter server" in killed["why"]
    assert all(r["secs"] > 0 for r in (killed, stopped, told)), out
    assert killed["examples"] >= 0
    assert told["units"] == 0
    epochs = finish_in_one_process(programs, dataset, model_dir, *model, least=3)
    # Before inline scores, a unit that takes over a second is attempted by an idle worker too.
    stragglers = epochs * IN_FLIGHT if "--eval=inline" in more else 0
    epochs -= 2 * (name == "counted")
    check(model_dir, dataset, programs, epochs=epochs, within_units=stragglers)


@pytest.mark.slow
def test_units_in_progress_when_a_server_is_lost_are_what_is_repeated(tmp_path, dataset, programs):
    """None was in progress at the checkpoint, which is of an earlier run's end."""
    model_dir = tmp_path / "m"
    flags = (*LOCAL, "--eval=none")
    train(programs, dataset, model_dir, *flags, "--epochs=1").finish()
    before = latest(model_dir)
    assert before.ledger["doing"] == []
    few = (*flags, f"--epochs={EPOCHS}", "--delta-secs=1000")  # nothing pauses training
    run = train(programs, dataset, model_dir, *few)
    run.wait_for("units are done")  # the line that says where it resumes
    while f"units {before.ledger['prefix']}/" in run.wait_for("units "):
        pass  # no unit was done yet, and perhaps none begun
    os.kill(pid_of(model_dir, "ps 1"), signal.SIGKILL)
    run.wait_for(f"parameter server 1 resumes from checkpoint {before.number}")
    run.wait_for("recovered: ")
    run.stop()
    summary = summary_of(model_dir)
    (recovery,) = summary["recoveries"]
    assert 1 <= recovery["repeated"] <= IN_FLIGHT
    doing = latest(model_dir).ledger["doing"]  # of a unit that the stop did not wait for
    assert summary["units"]["repeated"] + len(doing) >= recovery["repeated"]
    assert summary["units"]["repeated"] <= recovery["repeated"]
    epochs = finish_in_one_process(programs, dataset, model_dir)
    check(model_dir, dataset, programs, epochs=epochs, within_units=0)


@pytest.mark.slow
def test_only_the_lost_server_goes_back_and_the_others_apply_no_step_again(
    tmp_path, dataset, programs
):
    model_dir = tmp_path / "m"
    flags = (*LOCAL, f"--epochs={EPOCHS}", "--eval=none")
    run = train(programs, dataset, model_dir, *flags)
    run.wait_for("delta")
    client = run.process.pid
    tasks = [pid_of(model_dir, what) for what in ("ps 0", "worker 0", "worker 1")]
    os.kill(pid_of(model_dir, "ps 1"), signal.SIGKILL)
    run.wait_for("parameter server 1 resumes from checkpoint ")
    run.wait_for("recovered: ")
    saved = latest(model_dir).number
    until(lambda: latest(model_dir).number >= saved + 2)
    assert [pid_of(model_dir, what) for what in ("ps 0", "worker 0", "worker 1")] == tasks
    run.stop()
    assert run.process.pid == client
    (recovery,) = summary_of(model_dir)["recoveries"]
    assert recovery["in_place"]
    directory = CheckpointDirectory(model_dir)
    assert len({directory.read(n).history for n in directory.numbers()}) == 1  # readers go on
    epochs = finish_in_one_process(programs, dataset, model_dir)
    check(model_dir, dataset, programs, epochs=epochs, within_units=0)
    num_rows = dataset.split("train").rows
    again = visits(model_dir, num_rows) - epochs
    routed = route(
        [tf.range(num_rows, dtype=tf.int64)], feature_tables=[0], tables=["row"], num_shards=2
    )
    of_kept = again[routed.shard_ids[0].numpy()]
    assert of_kept.sum() <= 2 * 4 * BATCH_ROWS  # steps that were on their way: 4 a worker
    assert of_kept.max() <= 1


@pytest.mark.slow
def test_server_that_is_lost_after_the_last_unit_costs_no_restart(tmp_path, dataset, programs):
    model_dir = tmp_path / "m"
    module = "tests.training.loses_server_at_end"
    programs.append(run := Program(module, str(dataset.directory), str(model_dir)))
    run.wait_for("parameter server 1 resumes from checkpoint ")
    run.finish()
    assert run.begun_from == []
    summary = check(model_dir, dataset, programs, epochs=1, within_units=1, within_rows=0)
    assert summary["tables"]["row"] == dataset.split("train").rows
    assert summary["table_statistics"]["tables"]["row"]["rows"] == summary["tables"]["row"]


@pytest.mark.slow
def test_worker_that_does_not_end_its_call_does_not_keep_a_lost_server_from_coming_back(
    tmp_path, dataset, programs
):
    model_dir = tmp_path / "m"
    flags = ("--num-ps=2", "--num-workers=2", "--server-timeout-secs=100")
    run = train(programs, dataset, model_dir, *flags, f"--epochs={EPOCHS}", "--eval=none")
    run.wait_for("delta")
    os.kill(pid_of(model_dir, "worker 0"), signal.SIGSTOP)
    os.kill(pid_of(model_dir, "ps 1"), signal.SIGKILL)
    run.wait_for("parameter server 1 resumes from checkpoint ")
    run.wait_for("recovered: ")
    run.wait_for("delta")
    run.stop()
    assert [each["in_place"] for each in summary_of(model_dir)["recoveries"]] == [True]
    epochs = finish_in_one_process(programs, dataset, model_dir)
    check(model_dir, dataset, programs, epochs=epochs, within_units=IN_FLIGHT)


@pytest.mark.slow
def test_no_bit_differs_after_lost_servers_and_a_lost_client(tmp_path, dataset, programs):
    calm, model_dir = tmp_path / "calm", tmp_path / "m"
    flags = ("--epochs=30", "--eval=none")
    in_step = (*LOCAL, *flags, "--sync=full")
    run = train(programs, dataset, model_dir, *in_step)
    for what in ("ps 1", "ps 0"):
        run.wait_for("delta")
        os.kill(pid_of(model_dir, what), signal.SIGKILL)
        run.wait_for(", and so do the others: ")
        run.wait_for("recovered: ")
    run.wait_for("delta")
    os.kill(run.process.pid, signal.SIGKILL)
    wait_until_gone(str(model_dir))
    assert not (model_dir / "summary.json").exists()  # it was not done
    train(programs, dataset, model_dir, *in_step).finish()
    check(model_dir, dataset, programs, epochs=30, within_units=0, within_rows=0)
    train(programs, dataset, calm, *flags, "--replicas=2").finish()
    assert_same_values(model_dir, calm)


@pytest.mark.slow
def test_run_without_a_checkpoint_begins_anew_when_a_server_is_killed(tmp_path, dataset, programs):
    model_dir = tmp_path / "m"
    flags = (*LOCAL, f"--epochs={EPOCHS}", "--eval=none", "--delta-secs=1000")
    run = train(programs, dataset, model_dir, *flags)
    run.wait_for("units ")
    os.kill(pid_of(model_dir, "ps 0"), signal.SIGKILL)
    run.wait_for("it cannot be restored alone: there is no checkpoint of this run yet")
    run.wait_for(": going on from the beginning; ")
    run.wait_for("recovered: ")
    run.stop()
    (recovery,) = summary_of(model_dir)["recoveries"]
    assert (recovery["in_place"], recovery["checkpoint"]) == (False, None)


@pytest.mark.slow
def test_client_that_is_killed_leaves_nobody_and_resumes(tmp_path, dataset, programs):
    model_dir = tmp_path / "m"
    run = train(programs, dataset, model_dir, *LOCAL, f"--epochs={EPOCHS}")
    run.wait_for("delta")
    until(lambda: len(processes_with(str(model_dir))) == 6)  # servers and evaluator too
    os.kill(pid_of(model_dir, "worker 0"), signal.SIGKILL)
    while not (model_dir / "restarts.json").exists():
        run.wait_for("units ")
    os.kill(run.process.pid, signal.SIGKILL)
    wait_until_gone(str(model_dir))
    killed = latest(model_dir)

    run = train(programs, dataset, model_dir, *LOCAL, f"--epochs={EPOCHS}")
    run.wait_for("delta")
    assert "stopped; run the same command again to resume" in run.stop()
    told = latest(model_dir)
    assert told.number > killed.number
    assert told.ledger["doing"] == []
    wait_until_gone(str(model_dir))

    epochs = finish_in_one_process(programs, dataset, model_dir)
    # Of the worker that was killed: two units in flight.
    summary = check(model_dir, dataset, programs, epochs=epochs, within_units=2)
    assert summary["units"]["repeated"] == killed.ledger["repeated"] + len(killed.ledger["doing"])
    assert summary["worker_restarts"] == 1  # what the killed client had counted


@pytest.mark.slow
def test_cluster_of_tf_config_outlives_its_servers_and_its_client(tmp_path, dataset, programs):
    """Servers that are not the client's: it passes a stopped worker over, and ends with code 75."""
    model_dir = tmp_path / "m"
    cluster, serve = cluster_of(programs, num_ps=1, num_workers=2)

    def client() -> Program:
        few = (f"--epochs={EPOCHS}", "--eval=none", "--server-timeout-secs=3", "--grace-secs=10")
        config = tf_config(cluster, "chief")
        return train(programs, dataset, model_dir, *few, *BY_RESTART, TF_CONFIG=config)

    ps, first, second = serve("ps"), serve("worker", 0), serve("worker", 1)
    chief = client()
    chief.wait_for("delta")
    chief.process.kill()  # the servers serve the next one
    chief.process.wait()

    chief = client()
    before = latest(model_dir).number
    while latest(model_dir).number == before:
        chief.wait_for("units ")
    first.process.send_signal(signal.SIGSTOP)  # its unit is done elsewhere
    before = latest(model_dir).number
    while latest(model_dir).number <= before + 3:
        chief.wait_for("units ")
    first.process.send_signal(signal.SIGCONT)
    ps.process.kill()
    out = chief.finish(75)
    assert "Traceback" not in out
    assert "run the same command again to resume from the last checkpoint" in out.splitlines()[-1]

    ps = serve("ps")
    chief = client()
    chief.wait_for("delta")
    second.process.send_signal(signal.SIGTERM)
    second.finish(0)
    ps.process.send_signal(signal.SIGSTOP)
    assert "has not answered for 3 s" in chief.finish(75)
    ps.close()

    ps, second = serve("ps"), serve("worker", 1)
    chief = client()
    chief.wait_for("delta")
    ps.process.send_signal(signal.SIGTERM)
    out = chief.finish(75)
    assert "ps 0 was told to end, after a checkpoint" in out
    ps.finish(0)

    for program in (first, second):
        program.process.send_signal(signal.SIGTERM)  # nobody asks for it any more
        program.finish(0)
    epochs = finish_in_one_process(programs, dataset, model_dir)
    # Two workers were stopped or told to end, with two units in flight at most.
    check(model_dir, dataset, programs, epochs=epochs, within_units=2 * 2)


@pytest.mark.slow
def test_workers_of_tf_config_come_and_go_and_one_need_not_return(tmp_path, dataset, programs):
    model_dir = tmp_path / "m"
    cluster, serve = cluster_of(programs, num_ps=1, num_workers=3)

    serve("ps")
    first = serve("worker", 1)
    more = (f"--epochs={EPOCHS}", "--eval=none", "--min-workers=1", "--grace-secs=10")
    run = train(programs, dataset, model_dir, *more, TF_CONFIG=tf_config(cluster, "chief"))
    run.wait_for("delta")
    second = serve("worker", 0)
    run.wait_for("worker 0 joined: 2 of 3 workers are there")
    first.process.kill()  # for good: the others come and go without it
    third = serve("worker", 2)
    run.wait_for("worker 2 joined: 2 of 3 workers are there")
    second.process.send_signal(signal.SIGTERM)
    run.wait_for("worker 0 was told to end: saving a checkpoint")
    second.finish(0)
    run.wait_for("delta")
    second = serve("worker", 0)
    second.wait_for("worker 0 has a client")
    third.process.kill()
    saved = latest(model_dir).number
    until(lambda: latest(model_dir).number >= saved + 2)
    assert "E0000" not in run.stop()  # TensorFlow does not complain
    assert summary_of(model_dir)["recoveries"] == []
    epochs = finish_in_one_process(programs, dataset, model_dir)
    for program in programs:
        program.close()
    check(
        model_dir, dataset, programs, epochs=epochs, within_units=3 * 2, within_rows=2 * BATCH_ROWS
    )


@pytest.mark.slow
def test_client_of_tf_config_goes_on_beside_a_server_that_others_start_again(
    tmp_path, dataset, programs
):
    model_dir = tmp_path / "m"
    cluster, serve = cluster_of(programs, num_ps=2, num_workers=2)

    tasks = {(job, i): serve(job, i) for job in ("ps", "worker") for i in range(2)}
    more = (f"--epochs={EPOCHS}", "--eval=none", "--grace-secs=10")
    run = train(programs, dataset, model_dir, *more, TF_CONFIG=tf_config(cluster, "chief"))
    run.wait_for("delta")
    for lost, how in (
        ([("ps", 1)], signal.SIGKILL),
        ([("ps", 0), ("worker", 0)], signal.SIGKILL),  # at once
        ([("ps", 1)], signal.SIGTERM),
    ):
        for task in lost:
            tasks[task].process.send_signal(how)
        for task in lost:
            tasks[task].process.wait(30)
            tasks[task] = serve(*task)
        run.wait_for(f"parameter server {lost[0][1]} resumes from checkpoint ")
        run.wait_for("recovered: ")
        run.wait_for("delta")
    run.stop()
    recoveries = summary_of(model_dir)["recoveries"]
    assert [each["in_place"] for each in recoveries] == [True] * 3
    assert recoveries[2]["units"] == 0  # the server that was told to end was saved
    epochs = finish_in_one_process(programs, dataset, model_dir)
    for program in programs:
        program.close()
    check(model_dir, dataset, programs, epochs=epochs, within_units=IN_FLIGHT)


@pytest.mark.slow
def test_local_run_gets_more_workers_and_fewer_while_it_trains(tmp_path, dataset, programs):
    model_dir = tmp_path / "m"

    def scale(workers: int) -> None:
        programs.append(Program("embedps.scale", str(model_dir), f"--workers={workers}"))
        assert f"the run has {workers} worker" in programs.pop().finish()

    few = ("--num-ps=2", "--num-workers=1", "--eval=none", f"--epochs={EPOCHS}", *BY_RESTART)
    run = train(programs, dataset, model_dir, *few)
    run.wait_for("delta")
    scale(3)
    run.wait_for("joined: 3 of 3 workers are there")
    lose(run, model_dir, "worker 2", signal.SIGKILL)
    scale(1)
    run.wait_for("1 of 1 workers are there")
    assert not processes_with(f"{model_dir}/logs/worker-1.log")
    scale(2)
    run.wait_for("worker 1 joined: 2 of 2 workers are there")
    os.kill(pid_of(model_dir, "ps 0"), signal.SIGKILL)
    run.wait_for("recovered: ")
    pid_of(model_dir, "worker 1")  # the client that began anew has as many
    run.stop()
    epochs = finish_in_one_process(programs, dataset, model_dir)
    check(model_dir, dataset, programs, epochs=epochs, within_units=4)


@pytest.mark.slow
def test_plan_says_that_a_process_was_lost_while_it_measured(tmp_path, dataset, programs):
    flags = (f"--data={dataset.directory}", *MODELS["network"], *FLAGS[:2], "--num-ps=1")
    programs.append(Program("embedps", "plan", *flags, TMPDIR=str(tmp_path)))
    programs[0].wait_for("measuring a step in 1 PS + 1 worker: 16 s")
    os.kill(pid_of(next(tmp_path.glob("embedps-plan-*")), "ps 0"), signal.SIGKILL)
    said = programs[0].finish(75)
    assert "Traceback" not in said
    assert "a process of 1 PS + 1 worker, in which a step was measured, is lost" in said


@pytest.mark.parametrize("there", [False, True], ids=["absent", "stopped"])
def test_client_says_which_server_it_waits_for(tmp_path, dataset, programs, there):
    """The kernel takes connections for a server that is stopped: they alone say nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if there:
            server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        cluster: dict[str, Sequence[str]] = {
            "chief": ["127.0.0.1:1"],
            "ps": [address],
            "worker": ["127.0.0.1:2"],
        }
        config = tf_config(cluster, "chief")
        out = train(programs, dataset, tmp_path / "m", "--wait-secs=1", TF_CONFIG=config).finish(75)
    assert f"waited 1 s for ps 0 to serve at {address}" in out.splitlines()[-1]
    assert "Traceback" not in out
