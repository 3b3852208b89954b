"""Clusters behind one interface: threads of this process, and processes over gRPC."""

import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tensorflow as tf

import embedps
from embedps import kernels
from embedps.cluster import local_processes
from embedps.cluster.call_tracker import CallTracker
from embedps.cluster.coordinator import CoordinatorCluster
from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import ScheduledCall
from embedps.errors import ClusterError, ServerLostError, UsageError
from tests import forked
from tests.builders import ROOT
from tests.coordinator_program import use


def test_embedded_cluster_runs_functions_in_this_process():
    cluster = EmbeddedCluster(num_workers=2, num_shards=3)
    found = use(cluster)
    cluster.close()
    assert found["done"]
    assert found["squares"] == [i * i for i in range(8)]
    assert found["processes"] == [os.getpid()]
    assert found["num_workers"] == 2
    assert found["shard_devices"] == ["/device:CPU:0"] * 3
    assert "must be below 0" in found["error"]
    assert found["after_error"] == 81


def test_embedded_cluster_is_done_when_its_threads_are_idle():
    cluster = EmbeddedCluster(num_workers=2)
    both, go = threading.Barrier(3, timeout=60), threading.Event()

    def wait(x):
        both.wait()
        assert go.wait(60)
        return x + 1

    results = [cluster.schedule(wait, (tf.constant(i),)) for i in (1, 2)]
    both.wait()  # both run at once
    assert not cluster.done()
    go.set()
    cluster.join()
    assert cluster.done()
    assert [int(cluster.fetch(r)) for r in results] == [2, 3]
    cluster.close()


def test_embedded_cluster_runs_no_more_than_its_workers_at_once():
    cluster = EmbeddedCluster(num_workers=2)
    lock, running, most = threading.Lock(), 0, 0
    pair = threading.Barrier(2, timeout=60)

    def work(x):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        pair.wait()
        with lock:
            running -= 1
        return x

    for i in range(10):
        cluster.schedule(work, (tf.constant(i),))
    cluster.join()
    cluster.close()
    assert most == 2


def test_cluster_without_a_server_is_refused():
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"chief": ["a:1"], "worker": ["b:1"]}), task_type="chief", task_id=0
    )
    with pytest.raises(UsageError, match=r"at least a ps and a worker but has .*'worker': 1"):
        CoordinatorCluster(resolver, server_timeout_secs=15, wait_secs=15)


class HealthMonitor:
    """Nobody is known to be lost; those in `silent_tasks` have not answered for a while."""

    silent_tasks: ClassVar[set[tuple[str, int]]] = set()

    def draining(self):
        return set()

    def unreachable(self):
        return set()

    def unresponsive(self):
        return self.silent_tasks

    def foreign(self):
        return None


def make_coordinator() -> tuple[CoordinatorCluster, CallTracker]:
    """Makes a coordinator without servers, whose calls must end within 600 s."""
    cluster = object.__new__(CoordinatorCluster)
    calls = CallTracker(wait_secs=600)
    vars(cluster).update(
        _health=HealthMonitor(),
        _processes=None,
        _calls=calls,
        _schedule_lock=threading.Lock(),
        server_timeout_secs=15.0,
    )
    return cluster, calls


@pytest.mark.parametrize(
    ("silent", "told"),
    [
        ({("worker", 1), ("worker", 0)}, "while worker 0, worker 1 did not answer"),
        (set(), "though every server answers"),
    ],
)
@pytest.mark.parametrize("running", [(), (1,)])
def test_cluster_in_which_no_unit_ends_is_lost(monkeypatch, silent, told, running):
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(HealthMonitor, "silent_tasks", silent)
    cluster, calls = make_coordinator()
    waiting = ScheduledCall()
    calls.add(waiting)
    for worker in running:
        attempt = ScheduledCall()
        attempt.started_at = now - 99
        calls.started((worker, 0), attempt)
    told += "; running one: worker 1 for 700 s" if running else "; no worker runs one"
    now += 590
    assert cluster._check_servers() is None
    now += 11
    error = cluster._check_servers()
    assert isinstance(error, ServerLostError)
    assert str(error) == f"waited 600 s for any unit to end, {told}"
    for _ in range(7):
        calls.count_lost_attempt()
    lost = "; 7 attempts were lost with their workers: see the workers' logs"
    assert str(cluster._check_servers()) == f"waited 600 s for any unit to end, {told}{lost}"
    waiting.end()  # no call is left to wait for
    assert cluster._check_servers() is None


def test_wait_for_a_function_that_is_traced_counts(monkeypatch):
    """Every server is told of it: one that hangs does not answer."""
    cluster, _ = make_coordinator()
    cluster.strategy = tf.distribute.get_strategy()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lost: list[ClusterError | None] = []

    class Function:
        def get_concrete_function(self):
            nonlocal now
            lost.append(cluster._check_servers())
            now += 601
            lost.append(cluster._check_servers())
            raise ValueError("cannot be traced")

    with pytest.raises(ValueError, match="cannot be traced"):
        cluster.schedule(Function(), ())
    assert lost[0] is None
    assert isinstance(lost[1], ServerLostError)
    now += 601  # nothing is waited for
    assert cluster._check_servers() is None


def test_process_that_cannot_start_is_named_with_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    processes = local_processes.LocalProcesses(
        num_ps=1, num_workers=1, log_dir=tmp_path / "logs", grace_secs=5
    )
    try:
        with pytest.raises(ClusterError, match=r"ps 0 ended with code 1 .*/logs/ps-0.log"):
            processes.wait_until_serving(60)
    finally:
        processes.close()


def start(log_dir: Path, *arguments: Any) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """The program, and what it found; it waits for its stdin to end."""
    process = forked.start(
        ["-m", "tests.coordinator_program", str(log_dir), *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.wait()
    return process, json.loads(line)


def has_ended(handle: int) -> bool:
    """Waits for a process of another parent."""
    return bool(select.select([handle], [], [], 30)[0])


@pytest.mark.multiprocess
@pytest.mark.slow
def test_processes_of_a_local_cluster_do_the_work_and_end_with_it(tmp_path):
    process, found = start(tmp_path, 2, 2, 3, "close")
    handles = [os.pidfd_open(found[task]) for task in ("ps", "worker")]
    assert process.stdout is not None
    foreign = process.stdout.readline()
    assert process.stdout.readline() == "closed\n"
    assert all(has_ended(handle) for handle in handles)
    process.communicate("")
    assert process.returncode == 0
    for handle in handles:
        os.close(handle)

    assert found["done"]
    assert len(found["attempts"]) == 3  # two at the call, and one thread is left of two
    assert found["attempts"][2] == 1
    assert found["squares"] == [i * i for i in range(8)]
    assert found["after_error"] == 81
    assert "must be below 0" in found["error"]
    assert found["client"] not in found["processes"]
    assert set(found["processes"]) <= worker_pids(found)
    assert found["num_workers"] == 2
    assert found["shard_devices"] == [
        f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in (0, 1, 0)
    ]  # three shards on two servers
    assert found["rows"] == {"t": 100}
    ours, theirs = kernels.versions(), kernels.versions().replace(embedps.__version__, "9.9")
    assert f"worker 0 must run {ours}, as this process does, but runs {theirs}" in foreign


def worker_pids(found):
    """Of the processes that ran functions, all that are no server of rows and not the client."""
    return set(found["processes"]) - {found["ps"], found["client"]}


@pytest.mark.multiprocess
@pytest.mark.slow
def test_processes_of_a_local_cluster_end_with_a_client_that_is_killed(tmp_path):
    process, found = start(tmp_path, 1, 1, 0, "wait")
    handles = [os.pidfd_open(found[task]) for task in ("ps", "worker")]
    assert found["processes"] == [found["worker"]]
    process.kill()
    process.communicate()
    assert all(has_ended(handle) for handle in handles)
    for handle in handles:
        os.close(handle)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_worker_that_is_stopped_holds_no_other_up(tmp_path):
    """Its thread takes one function, which does not end; the other worker runs the other seven."""
    process, found = start(tmp_path, 1, 2, 0, "stop")
    process.communicate("")
    assert process.returncode == 0
    assert found["ended"] == 7
