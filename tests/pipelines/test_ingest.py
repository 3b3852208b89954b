"""Any declared table end to end: formats, order, splits, bad input, and no skew to serving."""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedps.dataset import RAGGED_TYPE, Dataset
from embedps.errors import DatasetError, UsageError
from pipelines import stages
from pipelines.job import make_dataset
from pipelines.lock import locked
from pipelines.options import Options
from pipelines.parse import LineParser
from pipelines.splits import SplitRule
from pipelines.table import Table
from pipelines.texts import fingerprint
from pipelines.transforms import Transforms
from tests.pipelines.builders import make_lines, read_split, write_log

SHOP = """
delimiter = ","
quote = '"'
missing = ["", "NA"]

[[column]]
name = "bought"
as = "label"

[[column]]
name = "price"
as = "numeric"
transform = [{ clip = [0, 50] }, "standardize"]

[[column]]
name = "age"
as = "numeric"
type = "integer"

[[column]]
name = "shop"
as = "categorical"
type = "string"
transform = [{ min_count = 3 }]

[[column]]
name = "item"
as = "categorical"
type = "integer"
transform = [{ hash = 1000 }]

[[column]]
name = "tags"
as = "list"
type = "string"
separator = "|"
transform = [{ min_count = 20 }]

[[column]]
name = "weight"
as = "weight"

[[column]]
name = "user"
as = "key"
type = "hex"

[[column]]
name = "comment"
as = "ignore"

[[feature]]
name = "age_group"
from = "age"
transform = [{ bucketize = [18, 40, 65] }]

[[feature]]
name = "shop_item"
cross = ["shop", "item"]
transform = [{ min_count = 2 }]
"""
NAMES = ("user", "comment", "bought", "price", "age", "shop", "item", "tags", "weight")


def load(tmp_path: Path, text: str = SHOP) -> Table:
    path = tmp_path / "shop.toml"
    path.write_text(text)
    return Table.load(str(path))


def make_records(num_rows: int, seed: int = 0) -> list[dict[str, str]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "user": f"{rng.integers(0, 40):x}",
            "comment": 'said "no, thanks"',
            "bought": str(rng.integers(0, 2)),
            "price": "" if rng.random() < 0.1 else f"{rng.normal(30, 25):.3f}",
            "age": "NA" if rng.random() < 0.2 else str(rng.integers(5, 90)),
            "shop": "" if rng.random() < 0.1 else f"shop, {rng.zipf(1.5)}",
            "item": str(rng.integers(-5, 30)),
            "tags": "|".join(f"é{tag}" for tag in rng.integers(0, 30, rng.integers(0, 4))),
            "weight": f"{rng.random():.2f}",
        }
        for _ in range(num_rows)
    ]


def write_csv(path: Path, records: list[dict[str, str]], names: tuple[str, ...] = NAMES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    return path


def make(table: Table, logs: Path | str, output: Path, **settings: Any) -> Dataset:
    settings.setdefault("num_shards", 3)
    dataset, _ = make_dataset(Options(input=(str(logs),), output=output, table=table, **settings))
    return dataset


def bad_lines(dataset_or_path: Dataset | Path) -> list[dict[str, Any]]:
    root = dataset_or_path if isinstance(dataset_or_path, Path) else dataset_or_path.directory
    return [json.loads(line) for line in (root / "_bad_lines.jsonl").open()]


def as_rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def as_texts(records: list[dict[str, str]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(records, schema=pa.schema([(n, pa.string()) for n in NAMES]))


def test_shards_hold_what_the_plain_function_makes_of_the_raw_rows(tmp_path: Path):
    records = make_records(500)
    write_csv(tmp_path / "logs/a.csv", records[:200])
    # The second file has its columns in another order.
    write_csv(tmp_path / "logs/b.csv", records[200:], tuple(reversed(NAMES)))
    dataset = make(load(tmp_path), tmp_path / "logs/*", tmp_path / "out")
    served = Transforms.load(tmp_path / "out").apply(as_texts(records))
    written = pa.concat_tables([read_split(dataset, split) for split in ("train", "eval")])
    assert written.column_names == served.schema.names
    assert as_rows(written) == as_rows(pa.Table.from_batches([served]))
    # And so it does one by one, without what is only known in training.
    names = [name for name in NAMES if name not in ("bought", "weight")]
    one = Transforms.load(tmp_path / "out").apply(as_texts(records).select(names).slice(7, 1))
    wanted = pa.Table.from_batches([served]).slice(7, 1).select(one.schema.names)
    assert repr(one.to_pylist()) == repr(wanted.to_pylist())
    assert set(served.schema.names) - set(one.schema.names) == {"bought", "weight"}


def test_plain_function_needs_neither_beam_nor_tensorflow():
    code = (
        "import sys, pipelines.transforms; "
        "print([m for m in ('tensorflow', 'apache_beam') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_features_are_those_of_a_plain_python_twin(tmp_path: Path):
    records = make_records(400)
    write_csv(tmp_path / "a.csv", records)
    dataset = make(
        load(tmp_path), tmp_path / "a.csv", tmp_path / "out", split=SplitRule(key="user")
    )
    transforms = Transforms.load(tmp_path / "out")
    # The statistics are of the rows to train on only: those whose user is not held out.
    everything = transforms.apply(as_texts(records)).to_pylist()
    train_rows = Counter(map(repr, read_split(dataset, "train").to_pylist()))
    train = [r for r, made in zip(records, everything, strict=True) if train_rows[repr(made)]]
    assert len(train) == dataset.splits["train"].rows
    held = {r["user"] for r in records} - {r["user"] for r in train}
    assert held
    assert dataset.splits["eval"].rows == sum(r["user"] in held for r in records)
    prices = [min(max(float(r["price"]), 0), 50) for r in train if r["price"]]
    mean, std = np.mean(prices), np.std(prices)
    shops = Counter(r["shop"] for r in train)
    tags = Counter(tag for r in train for tag in r["tags"].split("|") if tag)
    pairs = Counter((r["shop"], r["item"]) for r in train)
    crossed: dict[Any, int] = {}
    for record, made in zip(records, everything, strict=True):
        price = record["price"]
        wanted = (min(max(float(price), 0), 50) - mean) / std if price else math.nan
        np.testing.assert_allclose(made["price"], wanted, rtol=1e-6)
        age = math.nan if record["age"] == "NA" else float(record["age"])
        np.testing.assert_equal(made["age"], age)
        group = -1 if math.isnan(age) else sum(age >= bound for bound in (18, 40, 65))
        assert made["age_group"] == group
        shop = record["shop"]
        kept = fingerprint(shop) if shops[shop] >= 3 else -2
        assert made["shop"] == (kept if shop else -1)
        assert 0 <= made["item"] < 1000 or (made["item"] == -1 and record["item"] == "-1")
        assert made["tags"] == [
            fingerprint(tag) if tags[tag] >= 20 else -2 for tag in record["tags"].split("|") if tag
        ]
        pair = (shop, record["item"])
        if not shop or record["item"] == "-1":
            assert made["shop_item"] == -1
        elif pairs[pair] < 2:
            assert made["shop_item"] == -2
        else:
            assert made["shop_item"] >= 0
            assert crossed.setdefault(pair, made["shop_item"]) == made["shop_item"]
        assert made["weight"] == np.float32(record["weight"])
        assert made["bought"] == float(record["bought"])
    assert len(set(crossed.values())) == len(crossed) > 10


def test_dataset_json_tells_the_columns(tmp_path: Path):
    records = make_records(300)
    write_csv(tmp_path / "a.csv", records)
    dataset = make(load(tmp_path), tmp_path / "a.csv", tmp_path / "out", row_group_rows=40)
    assert Dataset.open(tmp_path / "out") == dataset
    assert (dataset.label, dataset.weight, dataset.timestamp) == ("bought", "weight", "")
    assert [f.name for f in dataset.numeric] == ["price", "age"]
    assert [f.transform for f in dataset.numeric] == ["clip, standardize", "raw"]
    names = [f.name for f in dataset.categorical]
    assert names == ["shop", "item", "age_group", "shop_item", "tags"]
    assert [f.ragged for f in dataset.categorical] == [False] * 4 + [True]
    assert dataset.schema["tags"] == RAGGED_TYPE
    whole = pa.concat_tables([read_split(dataset, split) for split in ("train", "eval")])
    for feature in dataset.categorical:
        values = whole[feature.name].to_pylist()
        flat = [i for v in values for i in v] if feature.ragged else values
        assert feature.cardinality == len(set(flat) - {-1})
        assert feature.missing == sum(v in (-1, []) for v in values)
    for number in dataset.numeric:
        assert number.missing == int(np.isnan(whole[number.name].to_numpy()).sum())
    for split in dataset.splits.values():
        for file in split.files:
            assert all(rows == 40 for rows in file.row_groups[:-1])
    assert dataset.input.lines_read == 300
    for step in ("shop", "tags", "shop_item"):
        assert (tmp_path / f"out/_transforms/{step}.arrow").is_file()


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv.zst", "a.parquet", "typed.parquet"])
def test_any_packing_and_parquet_give_the_same_rows(tmp_path: Path, name: str):
    records = make_records(250)
    write_csv(tmp_path / "a.csv", records)
    plain = make(load(tmp_path), tmp_path / "a.csv", tmp_path / "plain")
    table = load(tmp_path)
    if name.endswith(".parquet"):
        table = load(tmp_path, 'format = "parquet"' + SHOP)
        batch = as_texts(records)
        columns = {name: batch.column(name) for name in NAMES}
        if name.startswith("typed"):
            columns["bought"] = pa.array([r["bought"] == "1" for r in records])
            for key, kind in (("price", float), ("age", int), ("item", int), ("weight", float)):
                values = [None if r[key] in ("", "NA") else kind(r[key]) for r in records]
                columns[key] = pa.array(values)
            columns["shop"] = pa.array([r["shop"] or None for r in records]).dictionary_encode()
            columns["user"] = pa.array([int(r["user"], 16) for r in records], pa.int32())
            lists = [r["tags"].split("|") if r["tags"] else None for r in records]
            columns["tags"] = pa.array(lists, pa.large_list(pa.string()))
        pq.write_table(pa.table(columns), tmp_path / name, row_group_size=64)
    else:
        lines = (tmp_path / "a.csv").read_bytes().split(b"\n")[:-1]
        write_log(tmp_path / name, lines)
    other = make(table, tmp_path / name, tmp_path / "other")
    assert other.splits == plain.splits
    for split in ("train", "eval"):
        assert read_split(other, split).equals(read_split(plain, split)) or as_rows(
            read_split(other, split)
        ) == as_rows(read_split(plain, split))


def test_rows_are_sorted_by_time_across_shards_and_files(tmp_path: Path):
    table = Table.load("movielens_100k")
    rng = np.random.default_rng(0)
    rows = [
        (rng.integers(0, 9), rng.integers(0, 99), rng.integers(1, 6), rng.integers(0, 300))
        for _ in range(700)
    ]
    lines = ["\t".join(map(str, row)).encode() for row in rows]
    write_log(tmp_path / "logs/a.tsv", lines[:300])
    write_log(tmp_path / "logs/b.tsv", lines[300:])
    rule = SplitRule(fraction=None, from_ms=250_000)
    dataset = make(table, tmp_path / "logs/*", tmp_path / "out", split=rule)
    for split, mine in (
        ("train", [row for row in rows if row[3] < 250]),
        ("eval", [row for row in rows if row[3] >= 250]),
    ):
        found = read_split(dataset, split)
        # Equal times keep the order of the input: sorted() is stable.
        wanted = sorted(mine, key=lambda row: row[3])
        assert found["time"].to_pylist() == [row[3] * 1000 for row in wanted]
        assert found["user_id"].to_pylist() == [row[0] for row in wanted]
        assert found["rating"].to_pylist() == [float(row[2] >= 4) for row in wanted]
        counts = [file.rows for file in dataset.splits[split].files]
        assert max(counts) - min(counts) <= 1
    assert dataset.timestamp == "time"


def test_given_files_are_held_out(tmp_path: Path):
    records = make_records(90)
    write_csv(tmp_path / "logs/a.csv", records[:60])
    write_csv(tmp_path / "logs/b.csv", records[60:])
    dataset = make(
        load(tmp_path),
        tmp_path / "logs/a*",
        tmp_path / "out",
        eval_input=(str(tmp_path / "logs/b*"),),
        split=SplitRule(fraction=None),
    )
    assert (dataset.splits["train"].rows, dataset.splits["eval"].rows) == (60, 30)
    with pytest.raises(UsageError, match="wanted another eval_files"):
        make(
            load(tmp_path),
            tmp_path / "logs/b*",
            tmp_path / "out",
            eval_input=(str(tmp_path / "logs/a*"),),
            split=SplitRule(fraction=None),
        )
    with pytest.raises(UsageError, match="must not both match"):
        make(
            load(tmp_path),
            tmp_path / "logs/*",
            tmp_path / "o",
            eval_input=(str(tmp_path / "logs/b*"),),
        )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a,b,c", "must have 9 fields, got 3"),
        ("zz,,1,1,1,s,1,t,1", "user must be a hexadecimal id or empty, got 'zz'"),
        ("1,,2,1,1,s,1,t,1", "bought must be 0 or 1, got '2'"),
        ("1,,,1,1,s,1,t,1", "bought must not be missing"),
        ("1,,1,1e999,1,s,1,t,1", "price must be a finite number, got '1e999'"),
        ("1,,1,nan,1,s,1,t,1", "price must be a number or empty, got 'nan'"),
        ("1,,1,1,1.5,s,1,t,1", "age must be an integer or empty, got '1.5'"),
        ("1,,1,1,1,s,9223372036854775808,t,1", "item must fit in 64 bits"),
        ("1,,1,1,1,s,1,t,-1", "weight must be 0 or more, got '-1'"),
        ("1,,1,1,1,s,1,t,", "weight must not be missing"),
        ('1,"x,1,1,1,s,1,t,1', "must have 9 fields, got 2"),
        ("1,,1,1,1,\udcff,1,t,1", "must be UTF-8: invalid start byte at byte 9"),
    ],
)
def test_bad_line_is_set_aside_with_file_line_and_reason(tmp_path: Path, line: str, reason: str):
    path = write_csv(tmp_path / "logs/a.csv", make_records(100))
    good = path.read_bytes().split(b"\n")[:-1]
    raw = line.encode("utf-8", errors="surrogateescape")
    write_log(path, [*good[:41], raw, *good[41:]])
    dataset = make(load(tmp_path), path, tmp_path / "out")
    (record,) = bad_lines(dataset)
    assert (record["file"], record["line"]) == ("a.csv", 42)
    assert reason in record["reason"]
    assert (dataset.input.lines_read, dataset.input.lines_bad) == (101, 1)
    assert sum(split.rows for split in dataset.splits.values()) == 100


def test_bad_rows_of_parquet_are_set_aside_by_number(tmp_path: Path):
    table = Table.parse(
        {
            "format": "parquet",
            "column": [
                {"name": "y", "as": "label"},
                {"name": "x", "as": "numeric"},
                {"name": "c", "as": "categorical", "type": "integer"},
            ],
        }
    )
    columns = {
        "y": pa.array([0.0, 1.0, 0.5, None, 1.0, 0.0]),
        "x": pa.array([1.0, math.nan, 1.0, 1.0, math.inf, None]),
        "c": pa.array([1, 2, 3, 4, 5, 1 << 63], pa.uint64()),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    dataset = make(table, tmp_path / "a.parquet", tmp_path / "out", max_bad_fraction=0.7)
    reasons = {record["line"]: record["reason"] for record in bad_lines(dataset)}
    assert reasons == {
        3: "y must be 0 or 1, got 0.5",
        4: "y must be 0 or 1, got nan",
        5: "x must be a finite number, got inf",
        6: f"c must fit in 64 bits with a sign, got {1 << 63}",
    }
    assert (dataset.input.lines_read, dataset.input.lines_bad) == (6, 4)
    cut = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(cut[:-9])
    both = make(table, tmp_path / "*.parquet", tmp_path / "both", max_bad_fraction=0.8)
    assert "the Parquet file is damaged here" in bad_lines(both)[-1]["reason"]
    assert (both.input.lines_read, both.input.lines_bad) == (7, 5)


def test_column_of_another_type_is_one_error(tmp_path: Path):
    pq.write_table(pa.table({"y": [0.0], "c": ["a"]}), tmp_path / "a.parquet")
    node: dict[str, Any] = {"format": "parquet", "column": [{"name": "y", "as": "label"}]}
    column = {"name": "c", "as": "numeric"}
    with pytest.raises(DatasetError, match="1 of 1 are"):
        make(
            Table.parse(node | {"column": [*node["column"], column]}),
            tmp_path / "a.parquet",
            tmp_path / "o",
        )
    column = {"name": "y", "as": "categorical", "type": "hex"}
    label = {"name": "c", "as": "label"}
    with pytest.raises(DatasetError, match="must hold integers, it holds double"):
        make(
            Table.parse(node | {"column": [label, column]}), tmp_path / "a.parquet", tmp_path / "o"
        )
    absent = {"name": "z", "as": "numeric"}
    with pytest.raises(DatasetError, match=r"a\.parquet: must have columns z, it has y, c"):
        make(
            Table.parse(node | {"column": [*node["column"], absent]}),
            tmp_path / "a.parquet",
            tmp_path / "o",
        )


def test_file_that_vanishes_and_empty_files_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("a", "b", "c"):
        write_csv(tmp_path / f"logs/{name}.csv", make_records(50, seed=ord(name)))
    (tmp_path / "logs/empty.csv").write_bytes(b"")
    (tmp_path / "logs/header.csv").write_text(",".join(NAMES) + "\n")
    opened = stages.open_input

    def open_late(path: str) -> Any:
        (tmp_path / "logs/b.csv").unlink(missing_ok=True)  # after it was listed
        return opened(path)

    monkeypatch.setattr(stages, "open_input", open_late)
    dataset = make(load(tmp_path), tmp_path / "logs/*", tmp_path / "out")
    assert [(r["file"], r["line"], r["reason"]) for r in bad_lines(dataset)] == [
        ("b.csv", 0, "the file vanished after it was listed"),
        ("empty.csv", 0, "the file has no rows"),
        ("header.csv", 0, "the file has no rows"),
    ]
    assert [file.lines for file in dataset.input.files] == [50, 0, 50, 0, 0]
    assert sum(split.rows for split in dataset.splits.values()) == 100


def test_cut_zstd_keeps_its_rows_and_is_counted(tmp_path: Path):
    log = write_log(tmp_path / "a.tsv.zst", make_lines(3000))
    log.write_bytes(log.read_bytes()[:-3000])
    dataset = make(Table.load("criteo"), log, tmp_path / "out")
    (record,) = bad_lines(dataset)
    rows = sum(split.rows for split in dataset.splits.values())
    assert record["reason"] == "the zstd stream ends early: the file is cut off here"
    assert record["line"] == rows + 1 == dataset.input.lines_read
    assert rows > 500


def test_too_many_bad_lines_fail_with_a_summary_and_no_dataset(tmp_path: Path):
    write_log(tmp_path / "logs/a.tsv", [*make_lines(90), *[b"bad"] * 10])
    write_log(tmp_path / "logs/b.tsv", make_lines(100))
    table = Table.load("criteo")
    with pytest.raises(DatasetError) as caught:
        make(table, tmp_path / "logs/*", tmp_path / "out", max_bad_fraction=0.049)
    assert "at most 4.900% of the lines may be bad" in str(caught.value)
    assert "10 of 200 are (a.tsv: 10 of 100)" in str(caught.value)
    assert os.listdir(tmp_path / "out") == ["_bad_lines.jsonl"]
    assert len(bad_lines(tmp_path / "out")) == 10
    dataset = make(table, tmp_path / "logs/*", tmp_path / "out", max_bad_fraction=0.05)
    assert sum(split.rows for split in dataset.splits.values()) == 190


def test_rows_that_do_not_add_up_fail_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = write_log(tmp_path / "a.tsv", make_lines(40))
    parse = LineParser.parse
    monkeypatch.setattr(
        LineParser, "parse", lambda self, block: (parse(self, block)[0].slice(1), [])
    )
    with pytest.raises(DatasetError, match="40 were read, 39 written and 0 set aside"):
        make(Table.load("criteo"), log, tmp_path / "out")
    assert not (tmp_path / "out/_dataset.json").exists()


def test_header_that_lacks_a_column_is_one_error(tmp_path: Path):
    write_csv(tmp_path / "a.csv", [])
    table = load(tmp_path, SHOP + '[[column]]\nname = "nope"\nas = "numeric"\n')
    with pytest.raises(DatasetError, match=r"a\.csv: its first line must name.*'nope' is absent"):
        make(table, tmp_path / "a.csv", tmp_path / "out")


def test_second_run_on_a_directory_is_refused_while_the_first_holds_it(tmp_path: Path):
    log = write_log(tmp_path / "a.tsv", make_lines(30))
    output = tmp_path / "out"
    output.mkdir()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            make(Table.load("criteo"), log, output)
        except UsageError as error:
            failures.append(error)

    with locked(output):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    (failure,) = failures
    assert f"is being written by process {os.getpid()} on " in str(failure)
    assert os.listdir(output) == []
    # A lock file that a killed run left is no lock.
    (output / "_lock").write_text("process 1 on elsewhere")
    make(Table.load("criteo"), log, output)
    assert "_lock" not in os.listdir(output)


def test_ragged_and_weighted_dataset_is_trained_on(tmp_path: Path):
    from embedps.cluster import EmbeddedCluster
    from embedps.config import TrainConfig
    from embedps.trainer import Trainer
    from models import dlrm

    write_csv(tmp_path / "a.csv", make_records(600))
    dataset = make(load(tmp_path), tmp_path / "a.csv", tmp_path / "out")
    config = TrainConfig(
        data=str(tmp_path / "out"), model_dir=str(tmp_path / "model"), eval="none", batch_size=64
    )
    tiny = dlrm.Config(embedding_dim=4, bottom_mlp=(8,), top_mlp=(8,))
    recommender = dlrm.make(tiny, dataset)
    assert [f.name for f in recommender.features if f.ragged] == ["tags"]
    summary = Trainer(recommender, dataset, config, EmbeddedCluster()).run()
    assert summary["examples"] == dataset.splits["train"].rows


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
        split=SplitRule(fraction=None),
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
    dataset = make(
        Table.load("movielens_100k"), path, tmp_path / "out", split=SplitRule(key="user_id")
    )
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
