"""A schema that cannot be is one error that names the column; one that can be survives JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedps.errors import UsageError
from embedps.features.table_schema import SCHEMAS, Table

COLUMNS = """
  { name = "y", as = "label" },
  { name = "c", as = "categorical", type = "hex" },
  { name = "x", as = "numeric" },
  { name = "tags", as = "list", type = "integer" },
"""
BASE = f"column = [{COLUMNS}]\n"
HUGE = f"0x{'f' * 9000}"


def column(settings: str, name: str = "z") -> str:
    return f'column = [{COLUMNS}  {{ name = "{name}", {settings} }}]\n'


def feature(settings: str, name: str = "z") -> str:
    return column('as = "timestamp"', "t") + f'feature = [{{ name = "{name}", {settings} }}]\n'


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
    text = 'feature = [{ name = "x2", from = "x", transform = [{ bucketize = [1, 2] }] },'
    table = parse(tmp_path, BASE + text + ' { name = "cc", cross = ["c", "c"] }]')
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
        (
            'format = "csb"\n' + BASE,
            "format must be one of ('csv', 'jsonl', 'parquet', 'orc', 'tfrecord', 'avro'), got",
        ),
        ('delimiter = "é"\n' + BASE, "delimiter must be ASCII characters but no line break"),
        ('delimiter = ",,"\n' + BASE, 'quote must be "" with a delimiter of several'),
        ('encoding = "hex"\n' + BASE, "encoding must be one that Python knows of texts"),
        ('format = "orc"\nencoding = "latin-1"\n' + BASE, "encoding belongs to a format of"),
        ('encoding = "latin-99"\n' + BASE, "such as latin-1, got 'latin-99'"),
        (column('as = "numeric", path = "a..b"'), 'path must be keys with a "." between'),
        (column('as = "numeric", path = ["x"]'), "path belongs to another format than csv"),
        (column('as = "numeric", flatten = true'), "flatten belongs to a list or float_list"),
        ('quote = "x"\n' + BASE, "quote must be empty"),
        ('header = "maybe"\n' + BASE, "header must be true, false"),
        ('column = [{ name = "y", as = "label" }]', "must have a numeric, categorical or list"),
        (
            column('as = "label", task = "rank"'),
            "column 'z': task must be one of ('binary', 'classes', 'number'), got 'rank'",
        ),
        (
            column('as = "label", task = "classes"'),
            "column 'z': a label of task classes must have classes",
        ),
        (
            column('as = "label", classes = 1'),
            "classes must be a number from 2 to below 2**31, or a list of texts, got 1",
        ),
        (
            column('as = "label", classes = ["a", "a"]'),
            "class names must differ, ['a'] are repeated",
        ),
        (
            column('as = "label", task = "number", positive_from = 1'),
            "column 'z': positive_from belongs to a label of task binary",
        ),
        (
            column('as = "numeric", task = "number"'),
            "column 'z': task and classes belong to a label",
        ),
        (column('as = "numeric", keep = true'), "column 'z': keep belongs to a key"),
        (
            column('as = "numeric", optional = true'),
            "optional, soft, weight and value belong to a label",
        ),
        (column('as = "label", soft = true, task = "number"'), "soft belongs to a label of task"),
        (column('as = "label", soft = true, positive_from = 1'), "soft belongs to a label of task"),
        (column('as = "label", soft = 1'), "column 'z': soft must be true or false, got 1"),
        (
            column('as = "label", weight = "x"'),
            "column 'z': weight must name a column of as = \"weight\", got 'x'",
        ),
        (
            f'column = [{COLUMNS}  {{ names = ["v", "w"], as = "weight" }}]\n',
            "at most one weight column beside those that labels name by weight, got ['v', 'w']",
        ),
        (column('as = "key", type = "hex", keep = 1'), "keep must be true or false, got 1"),
        (feature('from = "t"'), "must have a step of hour, weekday or"),
        (
            feature('from = "t", transform = ["log1p"]'),
            "log1p is a step of numbers, here are times",
        ),
        (
            feature('from = "t", transform = [{ age = "then" }]'),
            "age must be a time such as 2026-01-31 or 2026-01-31T12:00:00Z, got 'then'",
        ),
        (feature('from = "x", transform = ["hour"]'), "hour is a step of times, here are numbers"),
        (column('as = "numeric"', "c"), "column names must differ, ['c']"),
        (column('as = "noun"'), "column 'z': as must be one of"),
        (column('as = "key"'), "column 'z': type must be given"),
        (column('as = "numeric"', "_z"), "must not be empty or begin with _"),
        (
            column('as = "numeric", type = "hex"'),
            "column 'z': type of a numeric column must be one of",
        ),
        (column('as = "numeric", size = 3'), "has no setting size"),
        (column('as = "weight", transform = ["log1p"]'), "a weight column has no transform"),
        (
            column('as = "numeric", transform = ["sqrt"]'),
            "feature 'z': a step must be log1p, standardize, clip",
        ),
        (
            column('as = "numeric", transform = [{ hash = 5 }]'),
            "feature 'z': hash is a step of ids, here are numbers",
        ),
        (feature('from = "c", transform = ["log1p"]'), "log1p is a step of numbers, here are ids"),
        (
            feature('from = "x", transform = ["standardize", { bucketize = [1] }]'),
            "bucketize has bounds of its own",
        ),
        (
            feature('from = "x", transform = [{ bucketize = [2, 1] }]'),
            "bucketize must have ascending bounds",
        ),
        (feature('from = "x", transform = [{ clip = [2, 1] }]'), "clip must have low < high"),
        (
            feature('from = "c", transform = [{ min_count = 1 }]'),
            "min_count must be from 2 to below 2**62",
        ),
        (feature('cross = ["c"]'), "cross must list two or more"),
        (feature('cross = ["c", "x"]'), "must be made of categorical"),
        (feature('from = "y"'), "must be made of numeric or"),
        (BASE + 'feature = [{ name = "z" }]', "a feature must have a name, from"),
        (feature('from = "c"', "y"), "feature names must differ, ['y']"),
        ("column = 3\n", "column must be [[column]] tables"),
        ("= 3", "must be TOML"),
        ("a = " + "[" * 3000, "must be TOML"),
        ("delimiter = 3\n" + BASE, "a schema: delimiter must be a text, got 3"),
        ("header = 1\n" + BASE, 'header must be true, false or "auto", got 1'),
        ("missing = 3\n" + BASE, "missing must be a list of texts, got 3"),
        (
            column('as = "numeric"').replace('name = "z"', 'names = "z"'),
            "or a list of names, got 'z'",
        ),
        (column('as = "label", positive_from = nan'), "got nan"),
        (
            column('as = "list", type = "hex", separator = 3'),
            "column 'z': separator must be a text, got 3",
        ),
        (feature('from = ["c"]'), "from must be a text, got ['c']"),
        (
            feature(f'from = "x", transform = [{{ clip = [0, {HUGE}] }}]'),
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


@pytest.mark.parametrize("kind", ["parquet", "orc", "jsonl"])
@pytest.mark.parametrize("setting", ['delimiter = ","', "header = false", 'quote = ""'])
def test_a_setting_of_csv_is_refused_for_another_format(tmp_path: Path, kind: str, setting: str):
    path = tmp_path / "a.toml"
    columns = '[[column]]\nname = "x"\nas = "numeric"\n'
    path.write_text(f'format = "{kind}"\n{setting}\n{columns}')
    name = setting.split()[0]
    with pytest.raises(UsageError, match=f"{name} must not be there for format = '{kind}'"):
        Table.load(str(path))
    path.write_text(f'format = "{kind}"\n{columns}')
    table = Table.load(str(path))
    assert Table.parse(table.to_json()) == table


def test_labels_with_weights_of_their_own_survive_json(tmp_path: Path):
    text = column(
        'as = "label", optional = true, soft = true, weight = "w" },\n'
        '  { names = ["w", "v"], as = "weight"'
    )
    table = parse(tmp_path, text)
    assert Table.parse(json.loads(json.dumps(table.to_json()))) == table
    label = table.column("z")
    assert (label.optional, label.soft, label.weight) == (True, True, "w")
