"""A schema that cannot be is one error that names the column; one that can be survives JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedps.errors import UsageError
from embedps.features.table_schema import SCHEMAS, Table

BASE = """
[[column]]
name = "y"
as = "label"

[[column]]
name = "c"
as = "categorical"
type = "hex"

[[column]]
name = "x"
as = "numeric"

[[column]]
name = "tags"
as = "list"
type = "integer"
"""

HUGE = f"0x{'f' * 9000}"
TIME = BASE + '[[column]]\nname = "t"\nas = "timestamp"\n'


def parse(tmp_path: Path, text: str) -> Table:
    path = tmp_path / "t.toml"
    path.write_text(text)
    return Table.load(str(path))


@pytest.mark.parametrize("name", sorted(path.stem for path in SCHEMAS.glob("*.toml")))
def test_schemas_that_come_along_survive_json(name: str):
    table = Table.load(name)
    assert Table.parse(json.loads(json.dumps(table.to_json()))) == table
    assert table.output_schema.names[0] == table.role("label").name  # type: ignore[union-attr]


def test_features_of_a_column_are_its_own_and_those_declared(tmp_path: Path):
    text = BASE + '[[feature]]\nname = "x2"\nfrom = "x"\ntransform = [{ bucketize = [1, 2] }]\n'
    table = parse(tmp_path, text + '[[feature]]\nname = "cc"\ncross = ["c", "c"]\n')
    assert [(f.name, f.kind) for f in table.features] == [
        ("c", "categorical"),
        ("x", "numeric"),
        ("tags", "list"),
        ("x2", "categorical"),
        ("cc", "categorical"),
    ]
    assert table.output_schema.names == ["y", "x", "c", "x2", "cc", "tags"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope = 1\n" + BASE, "a schema has no nope"),
        ('format = "avro"\n' + BASE, "format must be one of ('csv', 'parquet', 'orc'), got 'avro'"),
        ('delimiter = ",,"\n' + BASE, "delimiter must be one ASCII character"),
        ('quote = "x"\n' + BASE, "quote must be empty"),
        ('header = "maybe"\n' + BASE, "header must be true, false"),
        ('[[column]]\nname = "y"\nas = "label"\n', "must have a numeric, categorical or list"),
        (
            BASE + '[[column]]\nname = "z"\nas = "label"\ntask = "rank"\n',
            "column 'z': task must be one of ('binary', 'classes', 'number'), got 'rank'",
        ),
        (
            BASE + '[[column]]\nname = "z"\nas = "label"\ntask = "classes"\n',
            "column 'z': a label of task classes must have classes",
        ),
        (
            BASE + '[[column]]\nname = "z"\nas = "label"\nclasses = 1\n',
            "classes must be a number from 2 to below 2**31, or a list of texts, got 1",
        ),
        (
            BASE + '[[column]]\nname = "z"\nas = "label"\nclasses = ["a", "a"]\n',
            "class names must differ, ['a'] are repeated",
        ),
        (
            BASE + '[[column]]\nname = "z"\nas = "label"\ntask = "number"\npositive_from = 1\n',
            "column 'z': positive_from belongs to a label of task binary",
        ),
        (
            BASE + '[[column]]\nname = "z"\nas = "numeric"\ntask = "number"\n',
            "column 'z': task and classes belong to a label",
        ),
        (
            BASE + '[[column]]\nname = "z"\nas = "numeric"\nkeep = true\n',
            "column 'z': keep belongs to a key",
        ),
        (
            BASE + '[[column]]\nname = "z"\nas = "key"\ntype = "hex"\nkeep = 1\n',
            "keep must be true or false, got 1",
        ),
        (TIME + '[[feature]]\nname = "z"\nfrom = "t"\n', "must have a step of hour, weekday or"),
        (
            TIME + '[[feature]]\nname = "z"\nfrom = "t"\ntransform = ["log1p"]\n',
            "log1p is a step of numbers, here are times",
        ),
        (
            TIME + '[[feature]]\nname = "z"\nfrom = "t"\ntransform = [{ age = "then" }]\n',
            "age must be a time such as 2026-01-31 or 2026-01-31T12:00:00Z, got 'then'",
        ),
        (
            BASE + '[[feature]]\nname = "z"\nfrom = "x"\ntransform = ["hour"]\n',
            "hour is a step of times, here are numbers",
        ),
        (BASE + '[[column]]\nname = "c"\nas = "numeric"\n', "column names must differ, ['c']"),
        (BASE + '[[column]]\nname = "z"\nas = "noun"\n', "column 'z': as must be one of"),
        (BASE + '[[column]]\nname = "z"\nas = "key"\n', "column 'z': type must be given"),
        (BASE + '[[column]]\nname = "_z"\nas = "numeric"\n', "must not be empty or begin with _"),
        (
            BASE + '[[column]]\nname = "z"\nas = "numeric"\ntype = "hex"\n',
            "column 'z': type of a numeric column must be one of",
        ),
        (BASE + '[[column]]\nname = "z"\nas = "numeric"\nsize = 3\n', "has no setting size"),
        (
            BASE + '[[column]]\nname = "z"\nas = "weight"\ntransform = ["log1p"]\n',
            "a weight column has no transform",
        ),
        (
            BASE + '[[column]]\nname = "z"\nas = "numeric"\ntransform = ["sqrt"]\n',
            "feature 'z': a step must be log1p, standardize, clip",
        ),
        (
            BASE + '[[column]]\nname = "z"\nas = "numeric"\ntransform = [{ hash = 5 }]\n',
            "feature 'z': hash is a step of ids, here are numbers",
        ),
        (
            BASE + '[[feature]]\nname = "z"\nfrom = "c"\ntransform = ["log1p"]\n',
            "log1p is a step of numbers, here are ids",
        ),
        (
            BASE + '[[feature]]\nname = "z"\nfrom = "x"\n'
            'transform = ["standardize", { bucketize = [1] }]\n',
            "bucketize has bounds of its own",
        ),
        (
            BASE + '[[feature]]\nname = "z"\nfrom = "x"\ntransform = [{ bucketize = [2, 1] }]\n',
            "bucketize must have ascending bounds",
        ),
        (
            BASE + '[[feature]]\nname = "z"\nfrom = "x"\ntransform = [{ clip = [2, 1] }]\n',
            "clip must have low < high",
        ),
        (
            BASE + '[[feature]]\nname = "z"\nfrom = "c"\ntransform = [{ min_count = 1 }]\n',
            "min_count must be from 2 to below 2**62",
        ),
        (BASE + '[[feature]]\nname = "z"\ncross = ["c"]\n', "cross must list two or more"),
        (BASE + '[[feature]]\nname = "z"\ncross = ["c", "x"]\n', "must be made of categorical"),
        (BASE + '[[feature]]\nname = "z"\nfrom = "y"\n', "must be made of numeric or"),
        (BASE + '[[feature]]\nname = "z"\n', "a feature must have a name, from"),
        (BASE + '[[feature]]\nname = "y"\nfrom = "c"\n', "feature names must differ, ['y']"),
        ("column = 3\n", "column must be [[column]] tables"),
        ("= 3", "must be TOML"),
        ("a = " + "[" * 3000, "must be TOML"),
        ("delimiter = 3\n" + BASE, "a schema: delimiter must be a text, got 3"),
        ("header = 1\n" + BASE, 'header must be true, false or "auto", got 1'),
        ("missing = 3\n" + BASE, "missing must be a list of texts, got 3"),
        (BASE + '[[column]]\nnames = "z"\nas = "numeric"\n', "or a list of names, got 'z'"),
        (BASE + '[[column]]\nname = "z"\nas = "label"\npositive_from = nan\n', "got nan"),
        (
            BASE + '[[column]]\nname = "z"\nas = "list"\ntype = "hex"\nseparator = 3\n',
            "column 'z': separator must be a text, got 3",
        ),
        (BASE + '[[feature]]\nname = "z"\nfrom = ["c"]\n', "from must be a text, got ['c']"),
        (
            f'{BASE}[[feature]]\nname = "z"\nfrom = "x"\ntransform = [{{ clip = [0, {HUGE}] }}]\n',
            "clip must be a finite number, got a number of thousands of digits",
        ),
    ],
)
def test_schema_that_cannot_be_is_named(tmp_path: Path, text: str, message: str):
    with pytest.raises(UsageError) as caught:
        parse(tmp_path, text)
    assert message in str(caught.value)
    assert "t.toml" in str(caught.value)


def test_absent_schema_names_those_that_come_along():
    with pytest.raises(UsageError, match="avazu, criteo, movielens_100k"):
        Table.load("nope")


def test_table_may_have_no_label():
    columns = [
        {"name": "item", "as": "categorical", "type": "integer"},
        {"name": "history", "as": "list", "type": "integer"},
    ]
    table = Table.parse({"column": columns})
    assert table.output_schema.names == ["item", "history"]
    assert Table.parse(table.to_json()) == table
