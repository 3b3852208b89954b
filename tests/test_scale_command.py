"""`embedps scale`: what it says where nobody answers, and what a run answers."""

import threading
import time
from pathlib import Path

import pytest

from embedps.errors import UsageError
from embedps.run.cluster_config import ClusterConfig
from embedps.run.run_lock import RunLock
from embedps.scale import ScaleConfig, scale
from embedps.training.scale_requests import ScaleRequests
from tests.scheduling.scheduled_run import FakeCluster


class LocalCluster(FakeCluster):
    """Has as many workers as it is told to, below 9."""

    scales = True

    def scale(self, num_workers: int) -> None:
        if num_workers > 8:
            raise UsageError("8 at most")
        self.num_workers = num_workers


def ask(model_dir: Path, workers: int, config: ClusterConfig) -> tuple[str, int]:
    """Asks a run of two workers for others: its answer, and how many it then has."""
    cluster = LocalCluster(2)
    held = RunLock(model_dir)
    requests = ScaleRequests(model_dir, config, cluster)
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            requests.poll()
            time.sleep(0.01)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        return scale(ScaleConfig(directory=str(model_dir), workers=workers)), cluster.num_workers
    finally:
        ended.set()
        thread.join()
        held.release()


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
    with pytest.raises(UsageError, match="a run with --sync full keeps its workers"):
        ask(tmp_path, 4, ClusterConfig(num_ps=1, num_workers=2, sync="full"))


def test_a_request_to_no_run_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    asked = ScaleConfig(directory=str(tmp_path), workers=4, wait_secs=0.3)
    with pytest.raises(UsageError, match=r"no run trains in .*: give the --model-dir of one"):
        scale(asked)
    lock = RunLock(tmp_path)
    with pytest.raises(UsageError, match="did not answer within 0 s: is it training, on a local"):
        scale(asked)  # a run of another kind does not look
    lock.release()
    with pytest.raises(UsageError, match=r"no run trains in .* now: --num-workers says how"):
        scale(asked)
    assert not list(tmp_path.glob("_scale*"))
