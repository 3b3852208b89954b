"""Evaluators whose rows do not fit their memory give the scores of those whose rows do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from embedps import evaluate
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console import flags
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.evaluation import loaded_model, sidecar
from embedps.evaluation.evaluator import Evaluator
from embedps.predict import PredictConfig
from embedps.run.eviction_config import EvictionConfig
from embedps.run.opened_run import open_run
from embedps.run.run_config import RunConfig
from embedps.run.summary import read_evaluations
from embedps.tables.tiered import Tiered
from embedps.training.trainer import Trainer
from tests.builders import TINY_DLRM, make_config, make_trainer, read_split, write_dataset
from tests.training.same_bits import FIELDS, OF_A_RUN
from tests.training.tiered_model import ROWS, WIDE

BYTES = 2_200_000  # of 8000 rows of 512 bytes: about a quarter


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(tmp_path_factory.mktemp("wide") / "data", train=(ROWS,), whole=True)


@pytest.fixture(scope="module")
def run(wide: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "m"
    for epochs in (1, 2):  # a base, and a delta of all rows
        make_trainer(
            wide, path, recommender=WIDE, **FIELDS | {"epochs": epochs, "keep_secs": 1e6}
        ).fit()
    return path


def test_scores_are_those_with_all_rows_in_memory_checkpoint_by_checkpoint(
    run: Path, wide: Dataset, tmp_path: Path
) -> None:
    directory = CheckpointDirectory(run)
    memory = Tiered(max_memory_bytes=BYTES, directory=str(tmp_path / "spill"))
    tiered, whole = (
        Evaluator(WIDE, wide, directory, split="train", memory=each) for each in (memory, None)
    )
    numbers = directory.numbers()
    assert len(numbers) > 1
    for number in numbers:
        ours, theirs = (each.evaluate(number).metrics for each in (tiered, whole))
        assert ours == theirs
        files = [tmp_path / f"{name}-{number}.parquet" for name in ("ours", "theirs")]
        for each, file in zip((tiered, whole), files, strict=True):
            each.write_scores(file, lambda *_: None)
        assert pq.read_table(files[0]).equals(pq.read_table(files[1]))
    stats = tiered.collection.tier_stats()
    assert stats.rows_on_disk["row"] > ROWS / 2
    assert stats.read > ROWS / 2
    assert tiered.collection.stats().memory_bytes <= BYTES
    assert whole.collection.tier_stats().read == 0


def test_a_model_is_loaded_with_less_memory_than_its_rows(
    run: Path, wide: Dataset, tmp_path: Path
) -> None:
    opened = open_run(run, recommender=WIDE, data=wide.directory)
    asked = PredictConfig(
        input=("x",),
        output=tmp_path,
        model_dir=str(run),
        max_memory_bytes=BYTES,
        spill_dir=str(tmp_path / "spill"),
    )
    tiered, whole = (loaded_model.load_from(opened, memory=m) for m in (asked.memory(), None))
    table = read_split(wide, "train")
    np.testing.assert_array_equal(tiered.predict(table)["score"], whole.predict(table)["score"])
    assert tiered.collection.tier_stats().read > ROWS / 2


def test_the_command_has_the_same_scores(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    model_dir = tmp_path / "m"
    Trainer.from_config(make_config(dataset, model_dir, model="dlrm", epochs=2)).fit()
    for more in ([], ["--max-memory-bytes=16000000", f"--spill-dir={tmp_path / 'spill'}"]):
        assert evaluate.main(["--model-dir", str(model_dir), "--once", *more]) == 0
    found = [{k: v for k, v in e.items() if k not in OF_A_RUN} for e in read_evaluations(model_dir)]
    assert len(found) == 2
    assert found[0] == found[1]


def test_a_sidecar_has_the_memory_of_its_run(tmp_path: Path, monkeypatch: Any) -> None:
    started: list[list[str]] = []

    class Recorded:
        def __init__(self, arguments: list[str], **_: Any) -> None:
            started.append(arguments)

        def wait(self) -> int:
            return 0

        def close(self) -> None:
            pass

    monkeypatch.setattr(sidecar, "ChildProcess", Recorded)
    dataset = write_dataset(tmp_path / "data")
    config = make_config(dataset, tmp_path / "model", model="dlrm", eval="sidecar", gauc="C1")
    memory: dict[str, Any] = {"max_memory_bytes": BYTES, "spill_dir": str(tmp_path / "spill")}
    (tmp_path / "model").mkdir()
    for given in (None, memory):
        eviction = EvictionConfig(**given) if given else config.eviction
        asked = dataclasses.replace(config, eviction=eviction)
        RunConfig(config=asked, model_config=TINY_DLRM).save()
        sidecar.Sidecar(asked, resumed_after=-1).close()
        read = flags.read(evaluate.EvaluateConfig, started[-1][2:], "evaluate", "about")
        assert read.memory() == eviction.memory()
        assert read.gauc == "C1"


@pytest.mark.parametrize("given", [{"max_memory_bytes": 1}, {"spill_dir": "/tmp"}])
def test_memory_and_its_disk_must_be_given_together(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="max_memory_bytes and spill_dir must be given together"):
        evaluate.EvaluateConfig(model_dir="m", **given)
