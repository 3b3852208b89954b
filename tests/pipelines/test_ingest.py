"""Any declared table end to end: formats, order, splits, and no skew to serving."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from embedps.data.dataset import RAGGED_TYPE, Dataset
from embedps.errors import DatasetError, UsageError
from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint
from embedps.features.transforms import Transforms
from tests.builders import read_split
from tests.pipelines.builders import write_log
from tests.pipelines.shop import (
    NAMES,
    SHOP,
    as_rows,
    as_texts,
    bad_lines,
    load,
    make,
    make_records,
    write_csv,
)


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


def test_features_are_those_of_a_plain_python_twin(tmp_path: Path):
    records = make_records(400)
    write_csv(tmp_path / "a.csv", records)
    dataset = make(load(tmp_path), tmp_path / "a.csv", tmp_path / "out", split_key=("user",))
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


def as_json(table: pa.Table) -> list[bytes]:
    """A table's rows as JSON objects."""
    return [json.dumps(row, default=str).encode() for row in table.to_pylist()]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of 250 records, and a.csv with them beside its directory."""
    folder = tmp_path_factory.mktemp("plain")
    log = write_csv(folder / "a.csv", make_records(250))
    return make(load(folder), log, folder / "set", split_key=("user",))


@pytest.mark.parametrize(
    "name",
    ["a.csv.gz", "a.csv.zst", "a.jsonl.gz", "typed.jsonl", "a.parquet", "typed.parquet"],
)
def test_any_packing_and_parquet_give_the_same_rows(tmp_path: Path, plain: Dataset, name: str):
    records = make_records(250)
    table = load(tmp_path)
    if not name.startswith("a.csv"):
        table = load(tmp_path, f'format = "{name.split(".")[1]}"' + SHOP)
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
        if "jsonl" in name:
            write_log(tmp_path / name, as_json(pa.table(columns)))
        else:
            pq.write_table(pa.table(columns), tmp_path / name, row_group_size=64)
    else:
        write_log(tmp_path / name, (plain.directory.parent / "a.csv").read_bytes().splitlines())
    # A hash of the record is that of its format; a hash of a key is that of its value.
    other = make(table, tmp_path / name, tmp_path / "other", split_key=("user",))
    assert other.splits == plain.splits
    for split in ("train", "eval"):
        assert read_split(other, split).equals(read_split(plain, split)) or as_rows(
            read_split(other, split)
        ) == as_rows(read_split(plain, split))


LOG = ("y", "u", "x", "text", "day")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "orc"])
def test_rows_stay_in_their_split_when_the_schema_declares_more(tmp_path: Path, kind: str):
    rng = np.random.default_rng(3)
    rows = [
        dict(zip(LOG, (i % 2, i, float(x), f"{x:.1f}", f"2024-01-0{1 + i % 9}"), strict=True))
        for i, x in enumerate(rng.normal(size=300))
    ]
    rows += rows[:100]  # equal rows stay together, in whatever file
    for name, part in (("a", rows[:250]), ("b", rows[250:])):
        data = pa.Table.from_pylist(part)
        if kind == "csv":
            lines = [",".join(map(str, row.values())).encode() for row in part]
            write_log(tmp_path / f"in/{name}.csv", [",".join(LOG).encode(), *lines])
        elif kind == "jsonl":
            write_log(tmp_path / f"in/{name}.jsonl", as_json(data))
        else:
            (tmp_path / "in").mkdir(exist_ok=True)
            (pq if kind == "parquet" else pyarrow.orc).write_table(data, tmp_path / f"in/{name}.x")
    columns = [
        {"name": "y", "as": "label"},
        {"name": "u", "as": "key", "type": "integer", "keep": True},
        {"name": "x", "as": "numeric"},
        {"name": "text", "as": "categorical", "type": "string"},
        {"name": "day", "as": "timestamp", "format": "%Y-%m-%d"},
    ]
    held = []
    for count in (3, 4, 5):
        table = Table.parse({"format": kind, "column": columns[:count]})
        if kind == "csv":
            table = Table.parse({"header": True, "column": columns[:count]})
        dataset = make(table, tmp_path / "in", tmp_path / f"out-{count}", eval_fraction=0.3)
        eval_users = read_split(dataset, "eval")["u"].to_pylist()
        assert not set(eval_users) & set(read_split(dataset, "train")["u"].to_pylist())
        held.append(sorted(eval_users))
    assert held[0] == held[1] == held[2]
    assert 60 < len(held[0]) < 180


def test_rows_of_a_value_are_held_out_and_must_be_there(tmp_path: Path):
    records = make_records(60)
    write_csv(tmp_path / "a.csv", records)
    shop = next(each["shop"] for each in records if each["shop"])
    dataset = make(load(tmp_path), tmp_path / "a.csv", tmp_path / "out", eval_where=f"shop={shop}")
    assert dataset.splits["eval"].rows == sum(each["shop"] == shop for each in records)
    with pytest.raises(DatasetError, match="must have rows to hold out by --eval-from, --eval"):
        make(load(tmp_path), tmp_path / "a.csv", tmp_path / "none", eval_where="shop=no such shop")


def test_a_column_that_no_object_of_the_input_has_is_named(tmp_path: Path):
    table = load(tmp_path, 'format = "jsonl"' + SHOP)
    columns = pa.Table.from_batches([as_texts(make_records(20))])
    write_log(tmp_path / "a.jsonl", as_json(columns.drop_columns(["price", "shop"])))
    write_log(tmp_path / "b.jsonl", as_json(columns.drop_columns(["price", "age"])))
    with pytest.raises(DatasetError, match="no line of the input has price: spell"):
        make(table, tmp_path / "*.jsonl", tmp_path / "out")
    write_log(tmp_path / "c.jsonl", as_json(columns))
    dataset = make(table, tmp_path / "*.jsonl", tmp_path / "out")
    assert sum(split.rows for split in dataset.splits.values()) == 60


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
    dataset = make(table, tmp_path / "logs/*", tmp_path / "out", eval_from="1970-01-01T00:04:10")
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
    table, logs, out = load(tmp_path), tmp_path / "logs", tmp_path / "out"
    dataset = make(table, logs / "a*", out, eval_input=(str(logs / "b*"),))
    assert (dataset.splits["train"].rows, dataset.splits["eval"].rows) == (60, 30)
    with pytest.raises(UsageError, match="wanted another eval_files"):
        make(table, logs / "b*", out, eval_input=(str(logs / "a*"),))
    with pytest.raises(UsageError, match="must not both match"):
        make(table, logs / "*", tmp_path / "o", eval_input=(str(logs / "b*"),))


def test_ragged_and_weighted_dataset_is_trained_on(tmp_path: Path):
    from embedps.cluster.embedded import EmbeddedCluster
    from embedps.models import dlrm
    from embedps.run.config import TrainConfig
    from embedps.training.trainer import Trainer

    write_csv(tmp_path / "a.csv", make_records(600))
    dataset = make(load(tmp_path), tmp_path / "a.csv", tmp_path / "out")
    config = TrainConfig.from_options(
        data=str(tmp_path / "out"), model_dir=str(tmp_path / "model"), eval="none", batch_size=64
    )
    tiny = dlrm.Config(embedding_dim=4, bottom_mlp=(8,), top_mlp=(8,))
    recommender = dlrm.make(tiny, dataset)
    assert "tags" in (recommender.columns or ())
    summary = Trainer(recommender, dataset, config, EmbeddedCluster()).fit().summary
    assert summary["examples"] == dataset.splits["train"].rows


def test_parquet_of_empty_row_groups_and_lists_of_one_is_read(tmp_path: Path):
    columns = [
        {"name": "y", "as": "label"},
        {"name": "x", "as": "numeric"},
        {"name": "c", "as": "categorical", "type": "integer"},
    ]
    table = Table.parse({"format": "parquet", "column": columns})
    kinds = {"y": pa.int8(), "x": pa.list_(pa.float32(), 1), "c": pa.list_(pa.int64())}
    schema = pa.schema(list(kinds.items()))
    for name, sizes in {"a": (0, 3, 0, 0, 4, 0), "b": (0,)}.items():
        with pq.ParquetWriter(tmp_path / f"{name}.parquet", schema) as writer:
            for size in sizes:
                rows = {"y": [1] * size, "x": [[0.5]] * size, "c": [[9]] * size}
                writer.write_table(pa.table(rows, schema))
    dataset = make(table, tmp_path / "*.parquet", tmp_path / "out", eval_fraction=0.0)
    assert [file.lines for file in dataset.input.files] == [7, 0]
    assert dataset.input.lines_bad == 0
    assert read_split(dataset, "train").to_pylist() == [{"y": 1.0, "x": 0.5, "c": 9}] * 7


EVERY_KIND = """
column = [
  { name = "rating", as = "label", task = "number" },
  { name = "genre", as = "label", classes = ["drama", "comedy", "war"] },
  { name = "level", as = "label", classes = 5 },
  { name = "liked", as = "label" },
  { name = "user", as = "key", type = "string", keep = true },
  { name = "item", as = "categorical", type = "integer" },
  { name = "vector", as = "float_list" },
  { name = "w", as = "weight" },
  { name = "time", as = "timestamp" },
]
feature = [
  { name = "hour", from = "time", transform = ["hour"] },
  { name = "weekday", from = "time", transform = ["weekday"] },
  { name = "age", from = "time", transform = [{ age = 2024-01-02T00:00:00Z }] },
  { name = "age_group", from = "time", transform = [{age = "2024-01-02"}, {bucketize = [1, 7]}] },
]
"""
TIMES = [1704067200, 1704150000, -3600, 951782400]  # Mon 2024-01-01 0:00, 23:00; 1969; 29 Feb 2000


def every_kind() -> pa.Table:
    return pa.table(
        {
            "rating": pa.array([3.5, -1.0, 2.25, 4.0]),
            "genre": pa.array(["drama", "war", "comedy", "war"]),
            "level": pa.array([0, 4, 2, 1], pa.int8()),
            "liked": pa.array([1.0, 0.0, 1.0, 0.0]),
            "user": pa.array(["ann", "bob", "ann", None]),
            "item": pa.array([[7], [8], [9], None], pa.list_(pa.int64())),
            "vector": pa.array([[0.5, 1.5], [], None, [-2.0]], pa.list_(pa.float64())),
            "w": pa.array([1.0, 0.5, 0.0, 2.0]),
            "time": pa.array(TIMES),
        }
    )


def as_text(table: pa.Table) -> str:
    def shown(value: object) -> str:
        if isinstance(value, list):
            return " ".join(map(str, value))
        return f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)

    rows = table.to_pylist()
    lines = [",".join(map(shown, row.values())) for row in rows]
    return "\n".join([",".join(table.column_names), *lines]) + "\n"


@pytest.mark.parametrize("form", ["parquet", "orc", "csv", "jsonl"])
def test_every_kind_of_column_is_written_and_served(tmp_path: Path, form: str):
    table, path = every_kind(), tmp_path / f"log.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "orc":
        pyarrow.orc.write_table(table, path)
    elif form == "jsonl":
        write_log(path, as_json(table))
    else:
        path.write_text(as_text(table))
    schema = load(tmp_path, f'format = "{form}"\n{EVERY_KIND}')
    dataset = make(schema, path, tmp_path / "set", eval_fraction=0.0)
    assert [(each.name, each.kind, each.classes) for each in dataset.labels] == [
        ("rating", "number", 0),
        ("genre", "classes", 3),
        ("level", "classes", 5),
        ("liked", "binary", 0),
    ]
    assert (dataset.label, dataset.weight, dataset.timestamp) == ("rating", "w", "time")
    assert (dataset.keys, dataset.float_lists) == (("user",), ("vector",))
    assert dataset.split("train").positives == 0  # the first label is a number
    written = read_split(dataset, "train")
    order = np.argsort(TIMES, kind="stable").tolist()
    rows = written.to_pylist()
    assert [row["time"] for row in rows] == [1000 * TIMES[i] for i in order]
    wanted: list[tuple[str, list[Any]]] = [
        ("rating", [3.5, -1.0, 2.25, 4.0]),
        ("genre", [0, 2, 1, 2]),
        ("level", [0, 4, 2, 1]),
        ("liked", [1.0, 0.0, 1.0, 0.0]),
        ("user", [fingerprint("ann"), fingerprint("bob"), fingerprint("ann"), -1]),
        ("item", [7, 8, 9, -1]),
        ("vector", [[0.5, 1.5], [], [], [-2.0]]),
        ("w", [1.0, 0.5, 0.0, 2.0]),
        ("hour", [0, 23, 23, 0]),
        ("weekday", [0, 0, 2, 1]),
        ("age_group", [1, 0, 2, 2]),
    ]
    for name, values in wanted:
        assert [row[name] for row in rows] == [values[i] for i in order], name
    ages = [row["age"] for row in rows]
    days = [(1704153600 - TIMES[i]) / 86400 for i in order]
    assert ages == pytest.approx(days, rel=1e-6)
    served = Transforms.load(tmp_path / "set").apply(
        table.drop_columns(["rating", "genre", "level", "liked", "w"]).to_batches()[0]
    )
    for name in ("item", "vector", "user", "hour", "weekday", "age"):
        assert [served.column(name)[i].as_py() for i in order] == [row[name] for row in rows]


def test_what_no_label_can_be_is_set_aside(tmp_path: Path):
    good = every_kind()
    wrong: list[tuple[str, object, str]] = [
        ("rating", float("nan"), "rating must not be missing"),
        ("rating", None, "rating must not be missing"),
        ("genre", "opera", "genre must be one of the 3 classes, got 'opera'"),
        ("genre", None, "genre must not be missing"),
        ("level", 5, "level must be a class from 0 to 4, got 5"),
        ("liked", 0.5, "liked must be 0 or 1, got 0.5"),
        ("vector", [1.0, None], "vector must have no missing number"),
        ("vector", [1e39], "vector must be a number that fits in 32 bits"),
        ("item", [1, 2], "item must be one value or a list of one, got a list of 2"),
        ("w", -1.0, "w must be a number of 0 or more, got -1.0"),
    ]
    rows = good.to_pylist()
    bad = [{**rows[0], name: value} for name, value, _ in wrong]
    pq.write_table(pa.Table.from_pylist(rows + bad, schema=good.schema), tmp_path / "log.parquet")
    schema = load(tmp_path, f'format = "parquet"\n{EVERY_KIND}')
    settings: dict[str, Any] = {"eval_fraction": 0.0, "max_bad_fraction": 1.0}
    dataset = make(schema, tmp_path / "log.parquet", tmp_path / "set", **settings)
    reasons = [line["reason"] for line in bad_lines(dataset)]
    assert len(reasons) == len(wrong)
    for reason, (_, _, message) in zip(reasons, wrong, strict=True):
        assert message in reason


def test_a_damaged_orc_file_ends_with_a_bad_row(tmp_path: Path):
    path = tmp_path / "log.orc"
    pyarrow.orc.write_table(every_kind(), path)
    path.write_bytes(path.read_bytes()[:-20])
    schema = load(tmp_path, f'format = "orc"\n{EVERY_KIND}')
    with pytest.raises(DatasetError, match="the ORC file is damaged here"):
        make(schema, path, tmp_path / "set", eval_fraction=0.0)
