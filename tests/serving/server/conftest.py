"""A run whose checkpoints appear one by one, for all tests of the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedps.data.dataset import Dataset
from tests.builders import Replay


@pytest.fixture(scope="session")
def dataset(clicks: Dataset) -> Dataset:
    return clicks


@pytest.fixture(scope="session")
def trained(history: Path) -> Path:
    return history


@pytest.fixture
def replay(history: Path, tmp_path: Path) -> Replay:
    return Replay(history, tmp_path / "m")
