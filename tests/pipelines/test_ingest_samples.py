"""Declared tables of real click logs and ratings."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint
from tests.builders import read_split
from tests.pipelines.builders import write_log
from tests.pipelines.shop import make


def sample_rows(path: Path) -> list[list[str]]:
    with gzip.open(path, "rt") as lines:
        return [
            line.rstrip("\n").split("\t" if "movielens" in path.name else ",") for line in lines
        ]


def test_real_avazu_sample_is_read_whole(samples: Path, tmp_path: Path):
    table = Table.load("avazu")
    files = [samples / "avazu_train.csv.gz", samples / "avazu_test.csv.gz"]
    dataset = make(
        table,
        files[0],
        tmp_path / "out",
        eval_input=(str(files[1]),),
    )
    train, test = sample_rows(files[0])[1:], sample_rows(files[1])
    # The README says that the second file has a header; it has a row more and none.
    assert (len(train), len(test)) == (8_087, 432)
    assert (dataset.splits["train"].rows, dataset.splits["train"].positives) == (8_087, 1_397)
    assert (dataset.splits["eval"].rows, dataset.input.lines_bad) == (432, 0)
    assert dataset.splits["eval"].positives == sum(row[1] == "1" for row in test)
    rows = read_split(dataset, "train")
    assert set(rows["hour"].to_pylist()) == {1413849600000}  # 2014-10-21 00:00 UTC
    counts = Counter(row[5] for row in train)
    wanted = [int(row[5], 16) if counts[row[5]] >= 5 else -2 for row in train]
    assert rows["site_id"].to_pylist() == wanted  # of one hour: in the order of the file
    assert rows["C20"].to_pylist() == [int(row[22]) for row in train]
    assert max(rows["site_x_app"].to_pylist()) < 100_000


def test_real_movielens_sample_is_read_whole_and_sorted(samples: Path, tmp_path: Path):
    path = samples / "movielens_100k_u.data.gz"
    rows = sample_rows(path)
    dataset = make(Table.load("movielens_100k"), path, tmp_path / "out", split_key=("user_id",))
    assert sum(split.rows for split in dataset.splits.values()) == len(rows) == 100_000
    positives = sum(int(row[2]) >= 4 for row in rows)
    assert sum(split.positives for split in dataset.splits.values()) == positives
    assert [f.cardinality for f in dataset.categorical] == [943, 1682]
    train, held_out = (read_split(dataset, split) for split in ("train", "eval"))
    assert not set(train["user_id"].to_pylist()) & set(held_out["user_id"].to_pylist())
    times = train["time"].to_pylist()
    assert times == sorted(times)


def test_real_genres_are_a_ragged_feature(samples: Path, tmp_path: Path):
    items = {}
    for line in (samples / "movielens_100k_item.txt").read_text(encoding="utf-8").splitlines()[1:]:
        item, _, year, genres = line.split("\t")
        items[item] = (genres, year if year.isdigit() else "")
    lines = ["user_id\titem_id\trating\ttime\tgenres\trelease_year\tweight"]
    ratings = sample_rows(samples / "movielens_100k_u.data.gz")[:5000]
    lines += ["\t".join([*row, *items[row[1]], "1"]) for row in ratings]
    write_log(tmp_path / "joined.tsv.zst", [line.encode() for line in lines])
    dataset = make(Table.load("movielens_genres"), tmp_path / "joined.tsv.zst", tmp_path / "out")
    whole = pa.concat_tables([read_split(dataset, split) for split in ("train", "eval")])
    found = Counter(id for ids in whole["genres"].to_pylist() for id in ids)
    wanted = Counter(fingerprint(g) for row in ratings for g in items[row[1]][0].split(" ") if g)
    assert found == wanted
    years = read_split(dataset, "train")["release_year"].to_numpy()
    years = years[~np.isnan(years)].astype(np.float64)
    np.testing.assert_allclose([years.mean(), years.std()], [0, 1], atol=1e-5)
