"""The scores of each example: those of `embedps.load`, in the split's order, in any batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import embedps
from embedps import evaluate
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.evaluation import example_scores
from embedps.evaluation.evaluator import Evaluator
from embedps.run.summary import read_evaluations
from tests.builders import (
    MIXED,
    read_split,
)
from tests.disks import Disk


def command(*flags: object) -> int:
    return command_line.run(evaluate.main, [str(flag) for flag in flags])


def test_scores_are_those_of_the_loaded_model(
    tmp_path: Path,
    clicks: Dataset,
    copied: Path,
    scores: Callable[[int], np.ndarray],
    capsys: Any,
) -> None:
    first, *_, last = CheckpointDirectory(copied).numbers()
    logged = read_evaluations(copied)
    table, found = read_split(clicks), {}
    for number, batch_size in ((first, 97), (last, 4096)):
        file = tmp_path / f"{number}.parquet"
        flags = ("--model-dir", copied, "--number", number, "--scores", file)
        assert command(*flags, "--batch-size", batch_size) == 0
        assert f"{file}: the scores of 1,133 examples" in capsys.readouterr().out
        found[number] = pq.read_table(file)
        assert found[number].column_names == ["file", "row", "label", "score"]
        assert found[number].schema.metadata[b"embedps.number"] == b"%d" % number
        np.testing.assert_array_equal(found[number]["score"].to_numpy(), scores(number))
    config = evaluate.EvaluateConfig(
        model_dir=str(copied), number=last, scores=tmp_path / "again.parquet", batch_size=500
    )
    evaluate.evaluate(config)
    assert pq.read_table(tmp_path / "again.parquet").equals(found[last])
    assert not found[first]["score"].equals(found[last]["score"])
    assert read_evaluations(copied) == logged
    # Where each example is, and its label.
    files = [path.relative_to(clicks.directory).as_posix() for path in clicks.paths("eval")]
    assert found[last]["file"].to_pylist() == [files[0]] * 700 + [files[1]] * 433
    assert found[last]["row"].to_pylist() == [*range(700), *range(433)]
    assert found[last]["label"].equals(table["label"])


def test_the_totals_are_of_these_scores(tmp_path: Path, copied: Path, capsys: Any) -> None:
    flags = ("--model-dir", copied, "--once", "--scores", tmp_path / "scores.parquet")
    assert command(*flags) == 0
    read = pq.read_table(tmp_path / "scores.parquet")
    labels, scores = (np.float64(read[name].to_numpy()) for name in ("label", "score"))
    losses = -np.log(np.where(labels > 0.5, scores, 1 - scores))
    assert losses.mean() == pytest.approx(read_evaluations(copied)[-1]["logloss"], abs=1e-6)


def test_row_groups_hold_many_batches_of_lists_and_shared_tables(
    tmp_path: Path, mixed: tuple[Dataset, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, model_dir = mixed
    directory = CheckpointDirectory(model_dir)
    evaluator = Evaluator(MIXED, dataset, directory, batch_rows=64)
    evaluator.apply(directory.read(directory.numbers()[-1]))
    monkeypatch.setattr(example_scores, "_GROUP_ROWS", 500)
    done: list[int] = []
    file = tmp_path / "scores.parquet"
    assert evaluator.write_scores(file, done.append) == 1133
    # Units are of a file: 700 and 433 rows.
    assert done[:3] == [64, 128, 192]
    assert done[-1] == 1133
    groups = pq.ParquetFile(file).metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [512, 508, 113]
    loaded = embedps.load(model_dir, recommender=MIXED, data=dataset.directory)
    want = loaded.predict(read_split(dataset))["score"]
    np.testing.assert_array_equal(pq.read_table(file)["score"].to_numpy(), want)


def test_mistakes_get_one_line(tmp_path: Path, history: Path, capsys: Any) -> None:
    flags = ("--model-dir", history)
    wrong: list[tuple[tuple[object, ...], str]] = [
        (("--scores", tmp_path / "a"), "--scores is of one checkpoint: give --once or --number"),
        (("--once", "--scores", tmp_path), "must be a file in a local directory that is there"),
        (("--once", "--scores", tmp_path / "b" / "a"), "must be a file in a local directory"),
        (("--once", "--number", 1), "give one of them"),
        (("--number", 9999), "there is no manifest 9999"),
    ]
    for more, message in wrong:
        assert command(*flags, *more) in (1, 2)
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert message in said


def test_a_full_disk_leaves_no_file(tmp_path: Path, copied: Path, capsys: Any) -> None:
    disk = Disk(tmp_path / "disk", 1 << 20)
    try:
        disk.fill()
        file = disk.path / "scores.parquet"
        assert command("--model-dir", copied, "--once", "--scores", file) == 2
        said = capsys.readouterr().err
        assert f"{file} cannot be written: " in said
        assert "No space left on device" in said
        assert [path.name for path in disk.path.iterdir()] == ["filler"]
    finally:
        disk.close()
