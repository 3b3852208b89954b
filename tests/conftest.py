"""What every test shares: a quiet TensorFlow on the CPU, and the folder of real samples."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# Chooses Keras 2 before anything imports TensorFlow.
import embedps  # noqa: F401


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder named by EMBEDPS_SAMPLES, with real click logs; skips where it is unset."""
    name = os.environ.get("EMBEDPS_SAMPLES")
    if not name:
        pytest.skip("EMBEDPS_SAMPLES is unset: no real samples here")
    folder = Path(name)
    if not folder.is_dir():
        pytest.fail(f"EMBEDPS_SAMPLES names {name!r}, which is not a directory")
    return folder
