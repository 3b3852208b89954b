"""A schema is proposed from a file's first rows, and reads the file."""

from __future__ import annotations

import bz2
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from embedps.data.dataset import Dataset
from embedps.errors import DatasetError, UsageError
from embedps.features.table_schema import Table
from embedps.pipelines.infer import InferConfig, infer, main
from embedps.pipelines.ingestion.sample_columns import read_sample
from embedps.pipelines.ingestion.schema_proposal import propose
from tests.pipelines.shop import make


def proposed(path: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """The schema's text, and its columns by name."""
    text = propose(read_sample(str(path), 100_000))
    columns = {each.pop("name"): each for each in tomllib.loads(text)["column"]}
    return text, columns


def ingested(path: Path, text: str, folder: Path) -> int:
    """The rows that the proposed schema reads; none is bad."""
    (folder / "schema.toml").write_text(text)
    dataset = make(Table.load(str(folder / "schema.toml")), path, folder / "set")
    assert dataset.input.lines_bad == 0
    return dataset.input.lines_read


def clicks(num_rows: int = 400) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "request_id": f"{i:032x}",
            "clicked": int(rng.integers(2)),
            "user": {"id": int(rng.integers(50)), "plan": ["free", "paid"][i % 2]},
            "seen": [{"item": int(x), "secs": x / 3} for x in rng.integers(9, size=i % 4)],
            "price": None if i % 9 == 0 else round(float(rng.uniform(1, 90)), 2),
            "visits": int(rng.integers(1000)),
            "slot": int(rng.integers(5)),
            "at": 1_700_000_000 + i,
            "country": "x",
            "tags": ["a", "b", "c"][: i % 3],
        }
        for i in range(num_rows)
    ]


WANTED = {
    "request_id": {"as": "ignore"},
    "clicked": {"as": "label"},
    "user_id": {"path": "user.id", "as": "categorical", "type": "integer"},
    "user_plan": {"path": "user.plan", "as": "categorical", "type": "string"},
    "seen_item": {"path": "seen.item", "as": "list", "type": "integer"},
    "seen_secs": {"path": "seen.secs", "as": "float_list"},
    "price": {"as": "numeric", "transform": ["standardize"]},
    "visits": {"as": "numeric", "transform": ["log1p", "standardize"]},
    "slot": {"as": "categorical", "type": "integer"},
    "at": {"as": "timestamp", "type": "seconds"},
    "country": {"as": "ignore"},
    "tags": {"as": "list", "type": "string"},
}


@pytest.mark.parametrize("kind", ["jsonl.bz2", "parquet", "orc"])
def test_columns_and_values_within_them_are_declared(tmp_path: Path, kind: str):
    path, rows = tmp_path / f"log.{kind}", clicks()
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "orc":
        orc.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_bytes(bz2.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
    text, columns = proposed(path)
    assert columns == WANTED
    assert "# To hold out whole users, ingest with --split-key user_id." in text
    assert '5 whole numbers: as = "numeric", if they are amounts' in text
    assert ingested(path, text, tmp_path) == 400


TEXTS = [
    ("click,user,note\n1,a,x y\n0,b,NA\n", {"delimiter": ",", "header": True}),
    ("1\t5\t2\n0\t6\t3\n1\t7\t4\n", {"delimiter": "\t", "header": False}),
    ("y::name\n1::é\n0::ü\n", {"delimiter": "::", "header": True, "quote": ""}),
    ('y;text\n1;"a;b"\n0;"c\nd"\n', {"delimiter": ";", "header": True}),
]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[1]["delimiter"]))
def test_the_form_of_a_text_is_found(
    tmp_path: Path, text: tuple[str, dict[str, Any]], encoding: str
):
    path, (lines, wanted) = tmp_path / "log", text
    path.write_text(lines, encoding=encoding)
    found = read_sample(str(path), 100)
    is_plain = encoding == "utf-8" or (encoding == "latin-1" and lines.isascii())
    assert found.settings == {
        "format": "csv", **wanted, **({} if is_plain else {"encoding": encoding})
    }  # fmt: skip
    Table.parse({"name": "x"} | tomllib.loads(propose(found)))


def test_times_lists_and_missing_values_of_texts_are_found(tmp_path: Path):
    path = tmp_path / "log.csv"
    path.write_text("rated,when,tags,age,x\n" + "".join(
        f"{i % 2},2024-05-0{1 + i % 9} 10:00:00,a|b{i % 3},{'NULL' if i % 5 else i},f\n"
        for i in range(90)
    ))  # fmt: skip
    text, columns = proposed(path)
    assert columns["when"] == {"as": "timestamp", "format": "iso"}
    assert columns["tags"] == {"as": "list", "type": "string", "separator": "|"}
    assert columns["rated"] == {"as": "label"}  # the only one of 0 and 1
    assert tomllib.loads(text)["missing"] == ["", "NULL"]
    assert "# more than half of the values are missing" in text
    assert ingested(path, text, tmp_path) == 90


def test_names_that_no_feature_may_have_are_left_out_or_changed(tmp_path: Path):
    path = tmp_path / "log.csv"
    path.write_text(",_b,click\n0,3,1\n1,4,0\n")
    text, columns = proposed(path)
    assert columns == {"": {"as": "ignore"}, "_b": {"as": "ignore"}, "click": {"as": "label"}}
    assert "# No feature was found" in text
    path.write_text('{"_id": 1, "y": 1, "a": {"b": 2}, "a_b": 3}\n' * 2 + '{"_id": 5, "y": 0}\n')
    _, columns = proposed(path)
    assert columns["id"] == {"path": "_id", "as": "categorical", "type": "integer"}
    assert {"a_b", "a_b_2"} < columns.keys()


def test_what_no_declaration_reads_is_left_out(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    deep = b'{"b":' * 900 + b"1" + b"}" * 900
    lists = b"[" * 900 + b"1" + b"]" * 900
    line = b'{"y": %d, "a": ' + deep + b', "l": ' + lists + b', "m": [[{"k": 1}]]}\n'
    path.write_bytes(line % 0 + line % 1)
    _, columns = proposed(path)
    assert columns.pop("y") == {"as": "label"}
    assert columns["l"] == {"as": "list", "type": "integer", "flatten": True}
    assert columns["m"] == {"as": "ignore"}
    pq.write_table(pa.table({"y": [0, 1], "m": [[[{"k": 1}]]] * 2}), tmp_path / "log.parquet")
    assert proposed(tmp_path / "log.parquet")[1]["m"] == {"as": "ignore"}


def test_texts_of_a_file_cannot_break_the_schema_or_steer_a_terminal(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    names = ['a\x1b[2J\nas = "label"', 'b"]', "c\\", "\u202e d", "e\U000e0041", "f.g", "h"]
    records = [{name: f"{name}\r\n# {i}" for name in names} | {"y": i % 2} for i in range(30)]
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    text, columns = proposed(path)
    assert [*columns] == [*names, "y"]
    assert not any("path" in column for column in columns.values())
    assert all(c.isprintable() for line in text.split("\n") for c in line)


@pytest.mark.parametrize("name", [
    "avazu_train.csv.gz", "criteo_kaggle_12768.tsv.gz", "movielens_100k_u.data.gz",
    "movielens_100k_user.txt",
])  # fmt: skip
def test_real_logs_are_read_by_what_is_proposed(samples: Path, tmp_path: Path, name: str):
    text, columns = proposed(samples / name)
    labels = [name for name, column in columns.items() if column["as"] == "label"]
    assert labels == {"avazu_train.csv.gz": ["click"], "criteo_kaggle_12768.tsv.gz": ["c0"]}.get(
        name, []
    )
    assert ingested(samples / name, text, tmp_path) > 900


def test_the_command_prints_or_writes_and_keeps_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path, output = tmp_path / "log.csv", tmp_path / "schema.toml"
    path.write_text("click,user\n1,a\n0,b\n")
    main([str(path)])
    printed = capsys.readouterr().out
    assert Table.parse({"name": "x"} | tomllib.loads(printed)).role("label")
    main([str(path), "--output", str(output)])
    assert output.read_text() == printed
    with pytest.raises(UsageError, match="exists: remove it, or give another"):
        infer(InferConfig(input=str(path), output=output))


@pytest.mark.parametrize("wanted", [
    (b"", "must have rows to propose a schema of, it has none"),
    (b"one\ntwo\n", "must have fields with one of ',', '\\t', ';', '|', '::' between"),
    (b"PAR1nonsense", "the parquet file is damaged: "),
    (b"a,b\n" + b"1," * 3000 + b"1\n" * 9, "its lines must have fields"),
    (b"1," * 3000 + b"1\n", "must have at most 2,000 columns to propose a schema of"),
])  # fmt: skip
def test_what_has_no_columns_is_named(tmp_path: Path, wanted: tuple[bytes, str]):
    data, message = wanted
    path = tmp_path / "log"
    path.write_bytes(data)
    with pytest.raises(DatasetError) as caught:
        infer(InferConfig(input=os.fspath(path)))
    assert message in str(caught.value)


def test_the_given_column_is_the_label(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text("label,clicked,text\n" + "".join(f"{i % 2},0,t{i}\n" for i in range(40)))
    sample = read_sample(str(path), 100)
    columns = {c["name"]: c for c in tomllib.loads(propose(sample, "clicked"))["column"]}
    assert columns["clicked"] == {"name": "clicked", "as": "label"}  # zeros are no positives
    assert columns["label"]["as"] != "label"
    with pytest.raises(UsageError, match="'text' must hold numbers"):
        propose(sample, "text")
    with pytest.raises(UsageError, match="'no' must be one of the columns label, clicked, text"):
        propose(sample, "no")


def test_a_side_table_is_proposed_as_a_join(tmp_path: Path, capsys: Any):
    items = "id,title,year,genres,added\n" + "".join(
        f"{i},t{i % 7},{1990 + i % 30},a|b{i % 3},2024-05-01\n" for i in range(60)
    )
    (tmp_path / "items.csv").write_text(items)
    (tmp_path / "log.csv").write_text(
        "clicked,item\n" + "".join(f"{i % 2},{i % 50}\n" for i in range(200))
    )
    given = str(tmp_path / "items.csv")
    text = infer(InferConfig(input=given, join_on="item"))
    (side,) = tomllib.loads(text)["join"]
    assert (side["file"], side["on"], side["key"]) == (given, "item", "id")
    columns = {each.pop("name"): each for each in side["column"]}
    assert columns["id"] == {"as": "key", "type": "integer"}
    assert columns["genres"] == {"as": "list", "type": "string", "separator": "|"}
    assert columns["added"] == {"as": "ignore"}
    rows = infer(InferConfig(input=str(tmp_path / "log.csv"), label="clicked"))
    assert "it is to be completed" not in capsys.readouterr().err
    assert ingested(tmp_path / "log.csv", f"{rows}\n{text}", tmp_path) == 200
    (joined,) = Dataset.open(tmp_path / "set").input.joins
    assert (joined.rows, joined.unmatched) == (60, 0)
    twice = infer(InferConfig(input=given, join_on="title"))
    assert "# 53 rows have the key of another: each must be there once" in twice
    (tmp_path / "few.csv").write_text("a,b\n1,x\n1,x\n")
    with pytest.raises(UsageError, match=r"^--join-on item: the file must have .* it has a, b$"):
        infer(InferConfig(input=str(tmp_path / "few.csv"), join_on="item"))
    with pytest.raises(UsageError, match="give --label or --join-on"):
        InferConfig(input=given, join_on="item", label="y")


WRITTEN = {  # numbers, and how they are declared
    "0,5|12,25|3": {"decimal": ","},
    "0,125|1,125|2,250": {"decimal": ","},  # not 125
    "1.234,5|7|1.120.000,25": {"decimal": ",", "thousands": "."},
    "1,234.5|7.25|-12,000": {"thousands": ","},
    "1 234,5|7|-0,5e3": {"decimal": ",", "thousands": " "},
    "1\u2019234.5|7": {"thousands": "\u2019"},
}


@pytest.mark.parametrize("texts", WRITTEN)
def test_numbers_are_read_as_they_are_written(tmp_path: Path, texts: str):
    values = texts.split("|")
    path = tmp_path / "log.csv"
    rows = [f"{i % 2};{values[i % len(values)]}" for i in range(200)]
    path.write_text("\n".join(["label;price", *rows]), encoding="utf-8")
    text, columns = proposed(path)
    assert columns["price"] == {"as": "numeric", **WRITTEN[texts], "transform": ["standardize"]}
    marks = WRITTEN[texts]
    plain = text.replace('transform = ["standardize"]', "")
    assert ingested(path, plain, tmp_path) == 200
    read = pq.read_table(tmp_path / "set" / "train")["price"].unique().to_pylist()

    def number(value: str) -> float:
        return float(value.replace(marks.get("thousands", "_"), "").replace(",", "."))

    if marks.get("thousands") == ",":
        assert sorted(read) == sorted(float(v.replace(",", "")) for v in values)
    else:
        assert sorted(read) == sorted(map(number, values))


def test_ids_lists_and_amounts_with_units_are_no_numbers(tmp_path: Path):
    path = tmp_path / "log.csv"
    rows = [
        f"{i % 2};{1 << 63 | i};{'1,2,3'[: 1 + i % 3 * 2]};0{i % 9};$ {i},5" for i in range(200)
    ]
    rows += [f"{i % 2};{1 << 63 | i};4,5;{i % 9};${i}" for i in range(200)]
    path.write_text("\n".join(["label;big;tags;code;cost", *rows]), encoding="utf-8")
    text, columns = proposed(path)
    assert columns["big"]["type"] == "string"
    assert columns["tags"] == {"as": "list", "type": "integer", "separator": ","}
    assert columns["code"]["type"] == "string"  # "07" is another than "7"
    assert columns["cost"] == {"as": "categorical", "type": "string"}
    assert "numbers with a sign or a unit" in text


@pytest.mark.parametrize(
    ("texts", "name", "classes"),
    [
        (("Yes", "No"), "clicked", ["No", "Yes"]),
        (("True", "False"), "flag", ["False", "True"]),
        (("lost", "won"), "outcome", None),
    ],
)
def test_two_texts_are_a_label(tmp_path: Path, texts: tuple[str, str], name: str, classes: Any):
    path = tmp_path / "log.csv"
    rows = [f"{texts[i % 4 > 0]},{i % 9}" for i in range(200)]
    path.write_text("\n".join([f"{name},user", *rows]))
    text, columns = proposed(path)
    if classes is None:
        assert columns[name]["as"] == "categorical"
        text = propose(read_sample(str(path), 1000), name)  # told which one it is
        columns = {each["name"]: each for each in tomllib.loads(text)["column"]}
        classes = ["won", "lost"]  # the rarer one is the positive
    found = columns[name]
    assert (found["as"], found["task"], found["classes"]) == ("label", "binary", classes)
    assert ingested(path, text, tmp_path) == 200
    dataset = Dataset.open(tmp_path / "set")
    (label,) = dataset.labels
    assert (label.kind, label.classes) == ("binary", 0)
    wanted = sum(row.startswith(f"{classes[1]},") for row in rows)
    assert sum(split.positives for split in dataset.splits.values()) == wanted


def test_header_with_a_name_twice_is_refused(tmp_path: Path):
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["id,id,label", *(f"{i},{i % 7},{i % 2}" for i in range(200))]))
    with pytest.raises(DatasetError, match="each column once, but 'id' is repeated"):
        read_sample(str(path), 1000)


@pytest.mark.parametrize(
    ("times", "wanted", "told"),
    [
        ("28/04/2026|3/4/2026", "%d/%m/%Y", False),
        ("4/28/2026 1:05 PM|12/9/2026 11:05 AM", "%m/%d/%Y %I:%M %p", False),
        ("3/4/2026 13:05|4/4/2026 9:00", "%d/%m/%Y %H:%M", True),
        ("28.4.2026 13:05:09|1.4.2026 1:05:09", "%d.%m.%Y %H:%M:%S", False),
        ("99/99/2026|1/1/2026", None, False),
    ],
)
def test_dates_are_told_by_what_they_can_be(
    tmp_path: Path, times: str, wanted: str | None, told: bool
):
    path, texts = tmp_path / "log.csv", times.split("|")
    rows = [f"{i % 2}.0,{texts[i % len(texts)]},{i % 5}" for i in range(200)]
    path.write_text("\n".join(["label,when,user", *rows]))
    text, columns = proposed(path)
    assert columns["label"] == {"as": "label"}  # as pandas writes it
    assert (", if the day is after the month" in text) is told
    if wanted is None:
        assert columns["when"]["as"] == "categorical"
    else:
        assert columns["when"] == {"as": "timestamp", "format": wanted}
    assert ingested(path, text, tmp_path) == 200


def test_a_label_that_is_missing_in_some_rows_is_told(tmp_path: Path):
    path = tmp_path / "log.csv"
    rows = [f"{['0', '1', ''][i % 3]},{i % 5}" for i in range(300)]
    path.write_text("\n".join(["label,user", *rows]))
    text, columns = proposed(path)
    assert columns["label"] == {"as": "label"}
    assert "# optional = true, to keep the rows without it" in text
    assert ingested(path, text.replace('as = "label"', 'as = "label"\noptional = true'), tmp_path)


@pytest.mark.parametrize("kind", ["int64", "uint64", "float16"])
def test_numbers_that_float64_cannot_hold_are_read(tmp_path: Path, kind: str):
    path = tmp_path / "log.parquet"
    hashes = (np.arange(210) % 35 + (1 << 62)).astype(np.uint64) + np.uint64(1 << 63)
    values = {
        "int64": hashes.view(np.int64),
        "uint64": hashes,
        "float16": (np.arange(210) / 7).astype(np.float16),
    }
    pq.write_table(pa.table({"label": np.arange(210) % 2, "x": values[kind]}), path)
    text, columns = proposed(path)
    if kind == "float16":
        assert columns["x"] == {"as": "numeric", "transform": ["standardize"]}
    else:
        assert columns["x"] == {"as": "categorical", "type": "integer"}  # no amount is so large
    assert ingested(path, text, tmp_path) == 210


def test_intervals_are_kinds_and_no_lists(tmp_path: Path):
    path = tmp_path / "log.csv"
    rows = [f'{i % 2},"({i % 7}.5, {i % 7 + 1}.5]","[{i % 3}, 2]"' for i in range(200)]
    path.write_text("\n".join(["label,bin,tags", *rows]), encoding="utf-8")
    _, columns = proposed(path)
    assert columns["bin"] == {"as": "categorical", "type": "string"}
    assert columns["tags"]["as"] == "list"
