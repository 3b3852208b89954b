"""`embedps predict`: scores as of `embedps.load`, rows in order; a killed run goes on."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embedps
from embedps import predict
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.features.transforms import Transforms
from tests import commands
from tests.builders import ROOT, TINY_DLRM, dataset_fixture, make_config, read_split
from tests.pipelines.shop import NAMES, as_texts, make, make_records, write_csv
from tests.pipelines.shop import load as shop

dataset = dataset_fixture(train=(700, 300, 1), evaluation=(500, 0, 250))


def run(*flags: object) -> int:
    return command_line.run(predict.main, [str(flag) for flag in flags])


def flags(model_dir: Path, dataset: Dataset, output: Path, *more: object) -> list[object]:
    pattern = f"{dataset.directory}/*/*.parquet"
    return ["--model-dir", model_dir, "--input", pattern, "--output", output, *more]


def test_scores_are_those_of_the_loaded_model(
    tmp_path: Path, dataset: Dataset, history: Path, capsys: Any
) -> None:
    given = flags(history, dataset, tmp_path / "s", "--keep", "C1", "--batch-size", 64)
    assert run(*given) == 0
    model = embedps.load(history)
    for split in ("train", "eval"):
        for path in dataset.paths(split):
            scores = pq.read_table(tmp_path / "s" / split / path.name)
            table = pq.read_table(path)
            assert scores.column_names == ["C1", "score"]
            assert scores["C1"].equals(table["C1"])
            found = scores["score"].to_numpy()
            np.testing.assert_allclose(found, model.predict(table)["score"], rtol=1e-6)
    assert "6 files (1,751 rows) with checkpoint" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*.parquet")}
    file = tmp_path / "predict.toml"
    file.write_text(f'model_dir = "{history}"\nkeep = ["C1"]\nbatch_size = 64\n')
    assert run("--config", file, "--input", given[3], "--output", tmp_path / "s") == 0
    assert ": 6 of 6 files scored" in capsys.readouterr().out
    next(iter(before)).unlink()
    predict.predict(
        predict.PredictConfig(
            model_dir=str(history),
            input=(str(given[3]),),
            output=tmp_path / "s",
            keep=("C1",),
        )
    )
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*.parquet")}
    assert len([path for path in before if after[path] != before[path]]) == 1


@pytest.mark.slow
def test_a_killed_prediction_goes_on_with_its_checkpoint(
    tmp_path: Path, dataset: Dataset, clicks: Dataset, history: Path, copied: Path
) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    table = read_split(dataset, "train")
    for i in range(40):
        pq.write_table(pa.concat_tables([table] * 20), inputs / f"{i:02d}.parquet")
    command = (
        *("-m", "embedps.predict", f"--model-dir={copied}", "--keep=C2"),
        *(f"--input={inputs}/*.parquet", f"--output={tmp_path / 's'}", "--batch-size=100"),
    )
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "s").glob("*.parquet")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = {path: path.read_bytes() for path in (tmp_path / "s").glob("*.parquet")}
    assert 0 < len(done) < 40
    config = make_config(clicks, copied, eval="none", model="dlrm", epochs=4)
    embedps.Trainer.from_config(config, TINY_DLRM).fit()  # newer checkpoints
    commands.run(*command, timeout=None)
    number = json.loads((tmp_path / "s" / "_predict.json").read_text())["checkpoint"]
    assert number == embedps.load(history).number
    assert embedps.load(copied).number > number
    for path, content in done.items():
        assert path.read_bytes() == content
    whole = embedps.load(history).predict(table)["score"]
    for path in inputs.iterdir():
        scores = pq.read_table(tmp_path / "s" / path.name)
        assert scores["C2"].to_pylist() == 20 * table["C2"].to_pylist()
        np.testing.assert_allclose(scores["score"].to_numpy(), np.tile(whole, 20), rtol=1e-5)


def test_raw_records_are_scored_as_their_features(tmp_path: Path, capsys: Any) -> None:
    write_csv(tmp_path / "a.csv", make_records(600))
    dataset = make(shop(tmp_path), tmp_path / "a.csv", tmp_path / "set")
    config = make_config(dataset, tmp_path / "m", eval="none", model="dlrm")
    embedps.Trainer.from_config(config, TINY_DLRM).fit()
    raw = as_texts(make_records(50))
    pq.write_table(pa.Table.from_batches([raw]), tmp_path / "raw.parquet")
    given = ["--model-dir", tmp_path / "m", "--input", tmp_path / "raw.parquet", "--raw"]
    assert run(*given, "--output", tmp_path / "s") == 0
    transforms = Transforms.load(tmp_path / "set")
    wanted = embedps.load(tmp_path / "m").predict(transforms.apply(raw))["score"]
    found = pq.read_table(tmp_path / "s" / "raw.parquet")["score"].to_numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert len(np.unique(found)) > 10
    check_text_files(tmp_path, wanted, capsys)


def check_text_files(tmp_path: Path, wanted: Any, capsys: Any) -> None:
    """Text files, packed too, without labels, and with records that cannot be read."""
    records = make_records(50)
    write_csv(tmp_path / "in" / "a.csv", records)
    features = tuple(name for name in NAMES if name not in ("bought", "weight", "user"))
    lines = write_csv(
        tmp_path / "b.csv",
        [{name: record[name] for name in features} for record in records],
        features,
    ).read_text()
    first, *others = lines.splitlines(keepends=True)
    age = f",{records[1]['age']},"
    others[1] = others[1].replace(age, ",old,", 1)
    others.insert(3, "one field\n")
    with gzip.open(tmp_path / "in" / "b.csv.gz", "wt", encoding="utf-8") as file:
        file.write("".join([first, *others]))
    given = ["--model-dir", tmp_path / "m", "--raw", "--keep", "shop", "--batch-size", 7]
    given += ["--output", tmp_path / "t", "--input", tmp_path / "in" / "*"]
    capsys.readouterr()
    assert run(*given) == 0
    said = capsys.readouterr().out
    assert "b.csv.gz: 2 records cannot be read and have null scores, the first at 3: age must" in (
        said
    )
    assert "a.csv:" not in said
    scores = pq.read_table(tmp_path / "t" / "a.parquet")
    np.testing.assert_allclose(scores["score"].to_numpy(), wanted, rtol=1e-6)
    shops = [record["shop"] or None for record in records]
    assert scores["shop"].to_pylist() == shops
    scores = pq.read_table(tmp_path / "t" / "b.csv.parquet")
    expected = [*wanted[:1], None, wanted[2], None, *wanted[3:]]
    assert scores["shop"].to_pylist() == [*shops[:3], None, *shops[3:]]
    for found, want in zip(scores["score"].to_pylist(), expected, strict=True):
        assert found == (None if want is None else pytest.approx(want, rel=1e-6))
    (tmp_path / "in" / "b.csv.gz").unlink()
    given[-3] = tmp_path / "u"
    assert run(*given[:4], "no", *given[5:]) == 2
    assert (
        "--keep no: the schema has no such column, it has bought, price" in capsys.readouterr().err
    )


def test_mistakes_are_one_line(
    tmp_path: Path, dataset: Dataset, history: Path, capsys: Any
) -> None:
    def refused(*given: object, code: int = 2) -> str:
        assert run(*given) == code
        error = str(capsys.readouterr().err)
        assert error.count("\n") == 1
        return error

    (path,) = [p for p in dataset.paths("eval") if "00000" in p.name]
    output = ["--output", tmp_path / "s"]
    base = ["--model-dir", history]
    assert "must match a file" in refused(*base, "--input", tmp_path / "no*", *output)
    assert "is a directory: give" in refused(*base, "--input", dataset.directory, *output)
    os.mkfifo(tmp_path / "pipe.parquet")
    error = refused(*base, "--input", tmp_path / "pipe.parquet", *output)
    assert "pipe.parquet: must be a file but is not a regular one" in error
    shutil.copy(path, tmp_path / os.fsdecode(b"\xff.raw"))
    assert "file's name must be text of Unicode" in refused(
        *base, "--input", f"{tmp_path}/*.raw", *output
    )
    given = [*base, "--input", path]
    assert "not be where the input is" in refused(*given, "--output", path.parent)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert "has something else" in refused(*given, "--output", tmp_path / "full")
    text = tmp_path / "text.parquet"
    text.write_text("not parquet")
    assert "must be a Parquet file" in refused(*base, "--input", text, *output)
    assert "must have column 'nope'" in refused(*given, *output, "--keep", "nope")
    shutil.rmtree(tmp_path / "s")
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["C3"]), tmp_path / "less.parquet")
    error = refused(*base, "--input", tmp_path / "less.parquet", *output)
    assert "less.parquet must have column 'C3', it has" in error
    shutil.rmtree(tmp_path / "s")
    pq.write_table(table.append_column("C3", table["C3"]), tmp_path / "twice.parquet")
    error = refused(*base, "--input", tmp_path / "twice.parquet", *output)
    assert "twice.parquet must have column 'C3' once, it has 2" in error
    shutil.rmtree(tmp_path / "s")
    changed = table.set_column(table.column_names.index("C3"), "C3", pa.array(["a"] * len(table)))
    pq.write_table(changed, tmp_path / "text.parquet")
    error = refused(*base, "--input", tmp_path / "text.parquet", *output)
    assert "text.parquet: column 'C3' must have int64 ids but has string" in error
    shutil.rmtree(tmp_path / "s")
    assert run(*given, *output) == 0
    assert "has scores of other files" in refused(
        *base, "--input", tmp_path / "less.parquet", *output
    )
    assert "has scores of keep []" in refused(*given, *output, "--keep", "C1")
    assert "there is no manifest 99" in refused(
        *given, "--output", tmp_path / "t", "--number", 99, code=1
    )
    assert "no checkpoint yet" in refused(
        "--model-dir", _untrained(tmp_path, history), "--input", path, "--output", tmp_path / "u"
    )


def _untrained(tmp_path: Path, model_dir: Path) -> Path:
    (tmp_path / "untrained").mkdir()
    shutil.copy(model_dir / "config.json", tmp_path / "untrained")
    return tmp_path / "untrained"
