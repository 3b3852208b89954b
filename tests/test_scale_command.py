"""`embedps scale`: what it says where nobody answers, and what a run answers."""

import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from embedps.cluster.coordinator import CoordinatorCluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.errors import ClusterError, UsageError
from embedps.run import scale_file
from embedps.run.cluster_config import ClusterConfig
from embedps.run.run_lock import RunLock
from embedps.run.summary import read_json, write_json
from embedps.scale import ScaleConfig, scale
from embedps.training.prepared_cluster import PreparedCluster
from embedps.training.scale_requests import ScaleRequests
from embedps.training.training_setup import TrainingSetup
from tests.commands import until
from tests.scheduling.scheduled_run import FakeCluster


class LocalTasks(FakeCluster):
    """Has as many workers as it is told to, below 9."""

    why_fixed = ""

    def scale(self, num_workers: int) -> None:
        if num_workers > 8:
            raise UsageError("8 at most")
        self.num_workers = num_workers


class Processes:
    """They serve, or do not; a test says when."""

    cluster: Any = None

    def __init__(self) -> None:
        self.decided = threading.Event()
        self.problem = ""
        self.closed = False

    def wait_until_serving(self, secs: float) -> None:
        assert self.decided.wait(30)
        if self.problem:
            raise ClusterError(self.problem)

    def close(self) -> None:
        self.closed = True


class ReplacedTasks(LocalTasks):
    """Is replaced by others, up to 8 of each job."""

    num_ps = 2
    why_lost: ClusterError | None = None

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self.has_left = False
        self.prepared: list[tuple[int, int, Processes]] = []

    def prepare(self, *, num_ps: int, num_workers: int) -> Processes:
        if max(num_ps, num_workers) > 8:
            raise UsageError("8 of each at most")
        self.prepared.append((num_ps, num_workers, Processes()))
        return self.prepared[-1][-1]

    def leave(self) -> None:
        self.has_left = True


def prepare(processes: Any) -> PreparedCluster:
    """Makes what a run needs on processes, once they serve."""
    processes.wait_until_serving(30)
    processes.cluster = ReplacedTasks(4)
    return PreparedCluster(processes.cluster, cast(TrainingSetup, None), None)


def answered(requests: ScaleRequests, model_dir: Path, config: ScaleConfig) -> str:
    """What a run that polls answers."""
    held = RunLock(model_dir)
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            requests.poll()
            time.sleep(0.01)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        return scale(config)
    finally:
        ended.set()
        thread.join()
        held.release()


def ask(model_dir: Path, workers: int, config: ClusterConfig) -> tuple[str, int]:
    """Asks a run of two workers for others: its answer, and how many it then has."""
    cluster = LocalTasks(2)
    requests = ScaleRequests(model_dir, config, cluster, own=None, prepare=prepare)
    asked = ScaleConfig(directory=str(model_dir), workers=workers)
    return answered(requests, model_dir, asked), cluster.num_workers


def test_a_run_that_trains_takes_another_number_of_workers(tmp_path: Path) -> None:
    config = ClusterConfig(num_ps=1, num_workers=2)
    assert ask(tmp_path, 4, config) == ("the run has 4 workers from now on", 4)
    said, workers = ask(tmp_path, 5, config)
    assert workers == 5
    assert said.endswith("which lose accuracy: begin it with --max-staleness-steps 3")
    bounded = ClusterConfig(num_ps=1, num_workers=2, max_staleness_steps=1)
    assert ask(tmp_path, 5, bounded)[0] == "the run has 5 workers from now on"


def test_a_run_refuses_what_it_cannot_have(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="8 at most"):
        ask(tmp_path, 9, ClusterConfig(num_ps=1))
    given = ClusterConfig(num_ps=1, num_workers=2, sync="full")
    with pytest.raises(UsageError, match="the program that trains made the cluster, which only it"):
        ask(tmp_path, 4, given)
    with pytest.raises(UsageError, match="give --workers, --ps or both"):
        ScaleConfig(directory=str(tmp_path))
    for fixed, why in ((FakeCluster, "only a local cluster"), (CoordinatorCluster, "StatefulSet")):
        cluster = FakeCluster(2)
        cluster.why_fixed = fixed.why_fixed
        requests = ScaleRequests(tmp_path, ClusterConfig(), cluster, own=None, prepare=prepare)
        with pytest.raises(UsageError, match=why):
            answered(requests, tmp_path, ScaleConfig(directory=str(tmp_path), ps=2))


def replaced(model_dir: Path, **more: Any) -> tuple[ReplacedTasks, ScaleRequests]:
    config = ClusterConfig(num_ps=2, num_workers=4, **more)
    cluster = ReplacedTasks(4)
    own = cast(LocalCluster, cluster)
    return cluster, ScaleRequests(model_dir, config, cluster, own=own, prepare=prepare)


def request(model_dir: Path, **asked: Any) -> None:
    """Asks without waiting for an answer."""
    fields = {"token": "t", "servers": None, "workers": None, **asked}
    write_json(model_dir / scale_file.ASKED, fields)


def test_another_cluster_is_due_once_it_is_ready(tmp_path: Path) -> None:
    cluster, requests = replaced(tmp_path)
    request(tmp_path, servers=3)
    said = "3 parameter servers and 4 workers instead of 2 and 4"
    assert requests.poll() == [f"is to have {said}: ends what it has begun once they are ready"]
    ((servers, workers, processes),) = cluster.prepared
    assert (servers, workers) == (3, 4)
    assert requests.due is None
    request(tmp_path, servers=1)
    requests.poll()
    answer = read_json(tmp_path / scale_file.ANSWERED)
    assert answer["refused"] == f"{said} were asked for just now: wait for them"
    processes.decided.set()
    until(lambda: requests.due is not None)
    requests.follow(cast(LocalCluster, ReplacedTasks(4)))
    assert requests.due is None
    requests.done("they train")
    answer = read_json(tmp_path / scale_file.ANSWERED)
    assert (answer["said"], answer["refused"], processes.closed) == ("they train", "", False)


def test_a_run_goes_on_as_it_is_without_processes_that_do_not_serve(tmp_path: Path) -> None:
    cluster, requests = replaced(tmp_path, sync="full")
    request(tmp_path, workers=2)  # in step, they do not come and go
    requests.poll()
    ((_, _, processes),) = cluster.prepared
    processes.problem = "ps 0 ended with code 1"
    processes.decided.set()
    until(lambda: processes.closed or bool(requests.poll()))
    answer = read_json(tmp_path / scale_file.ANSWERED)
    assert (answer["refused"], processes.closed) == ("ps 0 ended with code 1", True)
    assert requests.due is None


def test_a_run_goes_on_as_it_is_if_the_other_cluster_is_lost_before(tmp_path: Path) -> None:
    cluster, requests = replaced(tmp_path)
    request(tmp_path, servers=3)
    requests.poll()
    ((_, _, processes),) = cluster.prepared
    processes.decided.set()
    until(lambda: requests.due is not None)
    processes.cluster.why_lost = ClusterError("parameter server 2 ended by SIGKILL")
    assert requests.due is None
    assert requests.poll() == [
        "goes on as it is, without 3 parameter servers and 4 workers instead of 2 and 4: "
        "parameter server 2 ended by SIGKILL"
    ]
    assert processes.cluster.has_left
    assert processes.closed
    request(tmp_path, servers=1)
    requests.poll()
    assert len(cluster.prepared) == 2


def test_a_change_that_cannot_be_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    cluster, requests = replaced(tmp_path, sync="full", sync_group_size=2)

    def refused(**asked: Any) -> str:
        request(tmp_path, **asked)
        assert requests.poll() == []
        return str(read_json(tmp_path / scale_file.ANSWERED)["refused"])

    assert "8 of each at most" in refused(servers=9)
    assert "must divide the 3 workers into groups" in refused(workers=3)
    requests.save_problem = lambda: "no space left"
    assert "the last one failed: no space left: ask again" in refused(servers=3)
    assert cluster.prepared == []
    request(tmp_path, servers=2, workers=4)
    assert requests.poll() == ["the run has 4 workers from now on"]  # as it has now


def test_a_request_to_no_run_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    asked = ScaleConfig(directory=str(tmp_path), workers=4, wait_secs=0.3)
    with pytest.raises(UsageError, match=r"no run trains in .*: give the --model-dir of one"):
        scale(asked)
    lock = RunLock(tmp_path)
    with pytest.raises(UsageError, match="did not take the request within 0 s: is it training"):
        scale(asked)  # a run of another kind does not look
    lock.release()
    with pytest.raises(UsageError, match=r"no run trains in .* now: --num-ps and --num-workers"):
        scale(asked)
    assert not list(tmp_path.glob("_scale*"))
