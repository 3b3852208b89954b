"""The evaluator's process beside a trainer's."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from embedps.errors import ClusterError
from embedps.evaluation.sidecar import Sidecar
from embedps.run.run_config import RunConfig
from tests.builders import TINY_DLRM, make_config, write_dataset


@pytest.mark.multiprocess
def test_evaluator_is_not_waited_for_without_end(tmp_path: Path):
    """It waits for a first checkpoint, which nobody writes."""
    dataset = write_dataset(tmp_path / "data")
    config = make_config(dataset, tmp_path / "model", model="dlrm")
    (tmp_path / "model").mkdir()
    RunConfig(config=config, model_config=TINY_DLRM).save()
    sidecar = Sidecar(config, resumed_after=-1)
    try:
        pid = sidecar._process.pid
        with pytest.raises(ClusterError, match=r"waited 1 s for the evaluator to score .*\.log; "):
            sidecar.finish(wait_secs=1, stop=threading.Event(), say=print)
        told = threading.Event()
        told.set()
        sidecar.finish(wait_secs=60, stop=told, say=print)  # a user who ends it waits for nothing
        assert sidecar.restarts == 0
    finally:
        sidecar.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
