"""A run of an earlier version is scored and resumed from the model directory that it left.

`stored/model` was trained by commit a230531: DLRM for two epochs, a base and a delta.
"""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from embedps.run.run_config import EARLIER_NAMES
from embedps.run.summary import read_evaluations
from tests import forked
from tests.builders import write_dataset

STORED = Path(__file__).parent / "stored" / "model"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the stored run and its dataset, by the names in its config.json."""
    lists = pa.list_(pa.int64())  # the type that its files had: the run knows their checksums
    write_dataset(tmp_path / "data", train=(600, 600), evaluation=(400,), lists=lists)
    shutil.copytree(STORED, tmp_path / "before")
    return tmp_path


def run(folder: Path, *command: str) -> None:
    done = forked.run(["-m", *command], cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.multiprocess
def test_its_checkpoint_has_the_scores_that_it_had(folder: Path):
    before = read_evaluations(STORED)[-1]
    run(folder, "embedps.evaluate", "--model-dir=before", "--once")
    after = read_evaluations(folder / "before")[-1]
    assert after["step"] == before["step"]
    assert after["auc"] == pytest.approx(before["auc"], abs=1e-5)
    assert after["logloss"] == pytest.approx(before["logloss"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_it_resumes_by_the_command_of_before(folder: Path):
    config = json.loads((STORED / "config.json").read_text())
    flags = ["--embedding-dim=4", "--bottom-mlp=8", "--top-mlp=8", "--batch-size=64"]
    run(
        folder,
        *("embedps.train", "--data=data", "--model-dir=before", "--eval=inline"),
        *(*flags, "--unit-rows=256", "--delta-secs=3600", "--epochs=3"),
    )
    summary = json.loads((folder / "before" / "summary.json").read_text())
    assert summary["finished"]
    assert summary["examples"] == 3 * 1200
    after = json.loads((folder / "before" / "config.json").read_text())
    config["train"]["epochs"] = 3
    for part, values in config.items():  # options that came since have their defaults
        assert {name: after[part][EARLIER_NAMES.get(name, name)] for name in values} == values
