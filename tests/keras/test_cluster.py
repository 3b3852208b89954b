"""A cluster trains a Keras model as one process does, within the noise of asynchronous steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import write_dataset
from tests.commands import run


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_cluster_reaches_the_loss_of_one_process(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "set", train=(16000, 16000), evaluation=(8000,))
    program = ("-m", "tests.keras.cluster_program", "mmoe", data.directory, tmp_path)
    done = run(*program, timeout=None)
    one, cluster = json.loads(done.stdout.splitlines()[-1])
    assert one < 0.72
    assert cluster == pytest.approx(one, abs=0.005)
