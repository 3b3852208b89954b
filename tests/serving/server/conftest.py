"""A run whose checkpoints appear one by one, for all tests of the server."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from tests.builders import TINY_DLRM, make_config, write_dataset
from tests.serving.server.builders import Replay


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", evaluation=(1200,))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """A run of which all checkpoints are kept: a base and deltas since it."""
    path = tmp_path_factory.mktemp("run") / "m"
    for epochs in (1, 2, 3):  # each resumes the one before
        config = make_config(
            dataset, path, model="dlrm", keep_secs=1e6, rebase="one-shot", epochs=epochs
        )
        embedps.Trainer.from_config(config, TINY_DLRM).fit()
    assert len(CheckpointDirectory(path).numbers()) >= 3
    return path


@pytest.fixture
def replay(trained: Path, tmp_path: Path) -> Replay:
    return Replay(trained, tmp_path / "m")
