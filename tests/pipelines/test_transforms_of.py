"""`--transforms-of`: day 2 is scaled as day 1 is, and what is scaled otherwise is refused."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embedps
from embedps import evaluate, predict, serve, train
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.data.transforms_digest import KEY
from embedps.errors import DatasetError, DimMismatchError, UsageError
from embedps.features.transform_steps import Standardize
from embedps.features.transforms import Transforms
from embedps.pipelines import ingest
from embedps.scheduling.arrivals import Arrivals
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.watch_ledger import WatchLedger
from embedps.training.file_watch import FileWatch
from tests.builders import TINY_DLRM, make_config, make_trainer, read_split
from tests.pipelines.builders import files_of
from tests.pipelines.shop import load, make

SCHEMA = """
column = [
  { name = "bought", as = "label" },
  { name = "price", as = "numeric", transform = ["standardize"] },
  { name = "shop", as = "categorical", type = "integer", transform = [{ min_count = 2 }] },
]
"""
PRICES = ([10, 20, 30, 40] * 10, [40, 50, 60, 70] * 10)
SHOPS = ([1, 1, 2, 3] * 10, [1, 2, 4, 4] * 10)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days, of which the second was scaled by itself and as the first."""
    root = tmp_path_factory.mktemp("days")
    table = load(root, SCHEMA)
    for day, (prices, shops) in enumerate(zip(PRICES, SHOPS, strict=True), 1):
        rows = "".join(
            f"{i % 2},{p},{s}\n" for i, (p, s) in enumerate(zip(prices, shops, strict=True))
        )
        (root / f"day{day}.csv").write_text("bought,price,shop\n" + rows)
    make(table, root / "day1.csv", root / "one", num_shards=1)
    make(table, root / "day2.csv", root / "own", num_shards=1)
    make(table, root / "day2.csv", root / "as_one", num_shards=1, transforms_of=root / "one")
    config = make_config(Dataset.open(root / "one"), root / "m", model="dlrm")
    embedps.Trainer.from_config(config, TINY_DLRM).fit()
    return root


def opened(root: Path, *names: str) -> tuple[Dataset, ...]:
    return tuple(Dataset.open(root / name) for name in names)


def scaled(dataset: Dataset, price: float) -> float:
    rows = Transforms.load(dataset.directory).apply(
        pa.record_batch({"price": [str(price)], "shop": ["1"]})
    )
    return rows.column("price")[0].as_py()


def complaint(capsys: pytest.CaptureFixture[str], main: Any, *flags: object) -> str:
    assert command_line.run(main, [str(flag) for flag in flags]) in (1, 2)
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    return said


def test_the_second_day_is_scaled_as_the_first(root: Path) -> None:
    one, own, as_one = opened(root, "one", "own", "as_one")
    prices = np.concatenate([read_split(as_one, s)["price"].to_numpy() for s in ("train", "eval")])
    steps = (step for f in Transforms.load(one.directory).table.features for step in f.steps)
    fitted = next(step for step in steps if isinstance(step, Standardize))
    assert fitted.mean is not None
    assert fitted.std is not None
    wanted = (np.array(PRICES[1]) - fitted.mean) / fitted.std
    np.testing.assert_array_equal(np.sort(prices), np.sort(wanted.astype(np.float32)))
    assert scaled(as_one, 40) == scaled(one, 40) > 0.5
    assert scaled(own, 40) < -0.5
    ids = np.concatenate([read_split(as_one, s)["shop"].to_numpy() for s in ("train", "eval")])
    assert set(ids) == {1, 2, -2}  # 4 was not in day 1
    digests = {d.transforms_digest for d in (one, as_one)}
    assert len(digests) == 1
    assert own.transforms_digest not in digests
    assert one.learned == ("price", "shop")
    for path in as_one.paths("train"):
        assert pq.read_metadata(path).metadata[KEY].decode() == one.transforms_digest
    made = Transforms.load(one.directory).apply(pa.record_batch({"price": ["1"], "shop": ["1"]}))
    assert made.schema.metadata[KEY].decode() == one.transforms_digest


def test_a_second_run_keeps_it_and_other_flags_are_told(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*("--schema", root / "shop.toml", "--input", root / "day2.csv", "--num-shards", 1)]
    before = files_of(root / "as_one")
    said = [*flags, "--output", root / "as_one", "--transforms-of", root / "one"]
    assert command_line.run(ingest.main, [str(f) for f in said]) == 0
    assert "kept" in capsys.readouterr().out
    assert files_of(root / "as_one") == before
    assert "another transforms_of" in complaint(
        capsys, ingest.main, *flags, "--output", root / "as_one"
    )
    assert "another dataset than --output" in complaint(
        capsys, ingest.main, *said[:-1], root / "as_one"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '["standardize"]',
            '["log1p", "standardize"]',
            r"feature 'price' must be .* has .*log1p.*, .*standardize.* and the dataset .*",
        ),
        ("min_count = 2", "min_count = 3", "feature 'shop' must be .*3.* and the dataset .*2"),
        ('type = "integer"', 'type = "string"', "'shop' must .*categorical string.* integer"),
        ('"price"', '"cost"', "feature 'cost' must .* and the dataset none"),
    ],
)
def test_another_schema_is_refused(root: Path, tmp_path: Path, old: str, new: str, message: str):
    table = load(tmp_path, SCHEMA.replace(old, new))
    with pytest.raises(UsageError, match=message):
        make(table, root / "day2.csv", tmp_path / "out", transforms_of=root / "one")
    assert not (tmp_path / "out").exists()


def test_a_dataset_of_before_has_the_digest_of_its_transforms(root: Path, tmp_path: Path) -> None:
    (one,) = opened(root, "one")
    shutil.copytree(one.directory, tmp_path / "old")
    path = tmp_path / "old" / "_dataset.json"
    document = json.loads(path.read_text())
    del document["transforms_digest"], document["learned"]
    path.write_text(json.dumps(document))
    old = Dataset.open(tmp_path / "old")
    assert (old.transforms_digest, old.learned) == (one.transforms_digest, one.learned)
    assert Transforms.of(old).digest == one.transforms_digest


def test_shards_and_transforms_of_another_dataset_are_refused(root: Path, tmp_path: Path) -> None:
    one, own = opened(root, "one", "own")
    shutil.copytree(one.directory, tmp_path / "mixed")
    shutil.copy(own.directory / "_transforms.json", tmp_path / "mixed")
    with pytest.raises(DatasetError, match="the dataset was made with " + one.transforms_digest):
        Transforms.of(Dataset.open(tmp_path / "mixed"))
    path = tmp_path / "mixed" / "_dataset.json"
    path.write_text(path.read_text().replace(one.transforms_digest, own.transforms_digest))
    with pytest.raises(DatasetError, match=rf"{one.transforms_digest}, they must be of"):
        Dataset.open(tmp_path / "mixed")


def test_watch_sets_aside_what_is_scaled_otherwise(root: Path, tmp_path: Path) -> None:
    one, own, as_one = opened(root, "one", "own", "as_one")
    folder = tmp_path / "in"
    folder.mkdir()
    ledger = WatchLedger(
        one,
        LedgerOptions(batch_rows=10, unit_rows=1000),
        Arrivals(tmp_path / "m"),
        epochs=1,
        directory=folder,
    )
    watch = FileWatch(folder, one, ledger, lambda *_: {}, ahead_units=lambda: 100)
    shutil.copy(own.paths("train")[0], folder / "a.parquet")
    shutil.copy(as_one.paths("train")[0], folder / "b.parquet")
    plain = pq.read_table(as_one.paths("train")[0]).replace_schema_metadata(None)
    for name in ("c.parquet", "d.parquet"):
        pq.write_table(plain, folder / name)
    ended = threading.Event()
    with watch:
        for _ in range(2400):
            if len(ledger.taken) == 4:
                break
            ended.wait(0.025)
    news = watch.news()
    refused = [line for line in news if "is not trained" in line]
    assert len(refused) == 1
    said = f"a.parquet is not trained: its values are of transforms {own.transforms_digest}, they"
    assert refused[0].startswith(said)
    assert refused[0].endswith(f"pipelines.ingest --transforms-of {one.directory}")
    assert len([line for line in news if "has no digest of transforms: price, shop" in line]) == 1
    arrived = {a.path: a.rows > 0 for a in Arrivals(tmp_path / "m").files}
    assert arrived == {f"{n}.parquet": n != "a" for n in "abcd"}


def test_a_run_resumes_only_on_values_of_its_transforms(root: Path, tmp_path: Path) -> None:
    one, own, as_one = opened(root, "one", "own", "as_one")
    make_trainer(one, tmp_path / "m").fit()
    with pytest.raises(DimMismatchError, match=r"transforms .*--transforms-of the dataset that"):
        make_trainer(own, tmp_path / "m")
    next_day = make_trainer(as_one, tmp_path / "m")
    assert [each["data"] for each in next_day.ledger.history] == [str(one.directory)]
    next_day.close()


def test_commands_refuse_another_dataset(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("--model-dir", root / "m")
    own, as_one = ("--data", root / "own"), ("--data", root / "as_one")
    message = "the dataset does not fit the checkpoint: its values are of transforms"
    assert message in complaint(capsys, train.main, *run, *own, "--model", "dlrm", "--eval=none")
    assert message in complaint(capsys, evaluate.main, *run, *own, "--once")
    served = (*run, "--name", "a", "--port", 0, "--rest-port", 0, "--raw")
    assert message in complaint(capsys, serve.main, *served, *own)
    given = ("--input", root / "as_one/train/*.parquet", "--output")
    flags = [*run, *own, *given, tmp_path / "a"]
    assert "they must be of" in complaint(capsys, predict.main, *flags)
    files = root / "own/train/*.parquet"
    flags = [*run, "--input", files, "--output", tmp_path / "b"]
    assert f"--transforms-of {root / 'one'}" in complaint(capsys, predict.main, *flags)
    said = complaint(capsys, predict.main, *run, *given, tmp_path / "c", "--raw")
    assert "has features, and no raw records: leave out --raw" in said
    assert command_line.run(predict.main, [*map(str, (*run, *as_one, *given, tmp_path / "d"))]) == 0
    table = pq.read_table(next((root / "own/train").glob("*.parquet")))
    table = table.replace_schema_metadata(
        {KEY: Dataset.open(root / "own").transforms_digest.encode()}
    )
    with pytest.raises(UsageError, match="the records: its values are of transforms"):
        embedps.load(root / "m").predict(table)
