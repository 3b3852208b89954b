"""Side tables joined at ingestion: the shards are those of events that were joined beforehand."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedps.data.dataset import Dataset
from embedps.errors import DatasetError, UsageError
from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint
from embedps.features.transforms import Transforms
from embedps.pipelines import ingest
from embedps.pipelines.ingestion import side_tables
from embedps.pipelines.ingestion.raw_records import RawReader
from tests.builders import read_split
from tests.pipelines.builders import files_of
from tests.pipelines.events import write_events
from tests.pipelines.shop import as_rows, make, options_of

EVENTS: list[dict[str, Any]] = [
    {"name": "number", "as": "key", "type": "integer", "keep": True},
    {"name": "user", "as": "key", "type": "string"},
    {"name": "item", "as": "categorical", "type": "integer"},
    {"name": "time", "as": "timestamp"},
    {"name": "clicked", "as": "label"},
]
OF_ITEMS: list[dict[str, Any]] = [
    {"name": "year", "as": "numeric", "transform": ["standardize"]},
    {"name": "genres", "as": "list", "type": "string", "separator": "|"},
    {"name": "shop", "as": "categorical", "type": "hex", "transform": [{"min_count": 3}]},
    {"name": "vector", "as": "float_list", "separator": "|"},
]
OF_USERS: list[dict[str, Any]] = [
    {"name": "city", "as": "categorical", "type": "string"},
    {"name": "age", "as": "numeric", "type": "integer"},
]
FEATURES = [
    {"name": "city_x_item", "cross": ["city", "item"]},
    {"name": "decade", "from": "year", "transform": [{"bucketize": [1980, 1990]}]},
]
LISTS = ("genres", "vector")
Records = list[dict[str, Any]]


def make_items(seed: int = 0) -> Records:
    """40 items in no order, some values missing; events have others too."""
    rng = np.random.default_rng(seed)
    return [
        {
            "id": int(item),
            "year": None if rng.random() < 0.2 else int(rng.integers(1970, 2000)),
            "genres": [f"é{tag}" for tag in rng.integers(0, 9, rng.integers(0, 4))],
            "shop": None if rng.random() < 0.2 else f"{rng.integers(0, 9):x}",
            "vector": [float(x) for x in rng.integers(-9, 9, 3) / 4],
        }
        for item in rng.permutation(40)
    ]


def make_users() -> Records:
    rng = np.random.default_rng(9)
    return [
        {"user": f"u{user}", "city": f"c{rng.integers(0, 4)}", "age": int(rng.integers(9, 90))}
        for user in rng.permutation(25)
    ]


def make_events(num_rows: int = 700) -> Records:
    rng = np.random.default_rng(4)
    return [
        {
            "number": number,
            "user": None if rng.random() < 0.1 else f"u{rng.integers(0, 30)}",
            "item": None if rng.random() < 0.1 else int(rng.integers(0, 45)),
            "time": int(rng.integers(0, 90)),
            "clicked": int(rng.integers(0, 2)),
        }
        for number in range(num_rows)
    ]


def joined_beforehand(events: Records, items: Records, users: Records) -> Records:
    """The plain twin: each event with the columns of its item and user."""
    by_id = {item["id"]: item for item in items}
    by_user = {user["user"]: user for user in users}
    found = []
    for event in events:
        item = by_id.get(event["item"], {})
        user = by_user.get(event["user"], {})
        of_item = {
            column["name"]: item.get(column["name"], [] if column["name"] in LISTS else None)
            for column in OF_ITEMS
        }
        found.append(event | of_item | {c["name"]: user.get(c["name"]) for c in OF_USERS})
    return found


def schema(kind: str, items: Path, users: Path, **settings: Any) -> Table:
    formats = {each: {"file": str(each), "format": each.suffix[1:]} for each in (items, users)}
    return Table.parse({
        "format": kind,
        "column": EVENTS,
        "join": [
            {**formats[items], "on": "item", "key": "id", "column": OF_ITEMS, **settings},
            {**formats[users], "on": "user", "column": OF_USERS},
        ],
        "feature": FEATURES,
    })  # fmt: skip


def shards_of(dataset: Dataset) -> dict[str, bytes]:
    files = files_of(dataset.directory)
    return {name: data for name, data in files.items() if name.endswith(".parquet")}


SPLITS: list[dict[str, Any]] = [
    {"eval_from": "1970-01-01T00:01:10"},
    {"eval_where": "city=c1"},
    {"eval_fraction": 0.3, "split_key": ("city", "item")},
    {"eval_last": 1, "by": "user"},
]


@pytest.mark.parametrize("side", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_shards_are_those_of_events_joined_beforehand(tmp_path: Path, kind: str, side: str):
    events, items, users = make_events(), make_items(), make_users()
    for place, part in enumerate((events[:300], events[300:])):
        write_events(tmp_path / "events" / f"{place}.{kind}", part)
        write_events(tmp_path / "whole" / f"{place}.{kind}", joined_beforehand(part, items, users))
    paths = [
        write_events(tmp_path / f"{n}.{side}", t) for n, t in (("items", items), ("users", users))
    ]
    table = schema(kind, *paths)
    flat = Table.parse(
        {"format": kind, "column": [*EVENTS, *OF_ITEMS, *OF_USERS]} | {"feature": FEATURES}
    )
    # Each split once per format of the events.
    for split in SPLITS[["csv", "jsonl", "parquet"].index(side) :: 3]:
        for name in ("a", "b"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        ours = make(table, tmp_path / "events", tmp_path / "a", **split)
        twin = make(flat, tmp_path / "whole", tmp_path / "b", **split)
        assert shards_of(ours) == shards_of(twin)
        assert len(shards_of(ours)) == 6
        assert (ours.numeric, ours.categorical) == (twin.numeric, twin.categorical)
        assert {file.rows for part in ours.splits.values() for file in part.files} != {0}
    known = [{item["id"] for item in items}, {user["user"] for user in users}]
    unmatched = [
        sum(event[on] not in keys for event in events)
        for on, keys in zip(("item", "user"), known, strict=True)
    ]
    assert [side.unmatched for side in ours.input.joins] == unmatched
    assert min(unmatched) > 0
    assert [(side.on, side.rows) for side in ours.input.joins] == [("item", 40), ("user", 25)]


def prepared(tmp_path: Path, **settings: Any) -> Table:
    """Events and side tables of CSV, and their schema."""
    write_events(tmp_path / "events.csv", make_events())
    items = write_events(tmp_path / "items.csv", make_items())
    return schema("csv", items, write_events(tmp_path / "users.csv", make_users()), **settings)


def test_any_runner_gives_the_same_bytes_and_a_second_run_keeps_them(tmp_path: Path, capsys: Any):
    table = prepared(tmp_path)
    keep = {"keep_texts": ("city", "genres")}
    one = make(table, tmp_path / "events.csv", tmp_path / "a", **keep)
    flags = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    two = make(table, tmp_path / "events.csv", tmp_path / "b", beam_flags=flags, **keep)
    assert files_of(one.directory) == files_of(two.directory)
    assert "rows have no row in items.csv by item" in capsys.readouterr().err
    before = files_of(one.directory)
    make(table, tmp_path / "events.csv", tmp_path / "a", **keep)
    assert files_of(one.directory) == before
    stored = Dataset.open(one.directory)
    assert stored.input.joins == one.input.joins
    assert Transforms.of(stored).table.joined.keys() == table.joined.keys()


def test_texts_of_joined_ids_are_kept_as_those_of_the_input(tmp_path: Path):
    events, items, users = make_events(), make_items(), make_users()
    whole = write_events(tmp_path / "whole.csv", joined_beforehand(events, items, users))
    flat = Table.parse({"column": [*EVENTS, *OF_ITEMS, *OF_USERS]})
    table = replace(prepared(tmp_path), features=flat.features)
    keep = {"keep_texts": ("city", "genres"), "split_key": ("user",)}
    ours = make(table, tmp_path / "events.csv", tmp_path / "a", **keep)
    twin = make(flat, whole, tmp_path / "b", **keep)
    assert ours.texts == twin.texts
    assert ours.texts.kept > 10
    assert shards_of(ours) == shards_of(twin)  # those of the texts too


def test_another_side_table_is_refused_beside_a_finished_dataset(tmp_path: Path):
    table = prepared(tmp_path)
    make(table, tmp_path / "events.csv", tmp_path / "a")
    text = (tmp_path / "items.csv").read_bytes().decode()
    (tmp_path / "items.csv").write_bytes(text.replace("é1", "é2").encode())  # as many bytes
    with pytest.raises(
        UsageError, match=r"was made when .*items.csv held other bytes: give --force"
    ):
        make(table, tmp_path / "events.csv", tmp_path / "a")
    (tmp_path / "items.csv").write_text(text + "99,,,,\n")
    with pytest.raises(UsageError, match="other input files or side tables: give --force"):
        make(table, tmp_path / "events.csv", tmp_path / "a")


def test_a_side_table_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    table, read = prepared(tmp_path), side_tables._rows_of

    def changing(task: Any, *others: Any) -> Any:
        yield from read(task, *others)
        with open(task.path, "a") as out:
            out.write("77,,,,\n")

    monkeypatch.setattr(side_tables, "_rows_of", changing)
    with pytest.raises(DatasetError, match=r"items.csv: must stay as it is while it is read"):
        make(table, tmp_path / "events.csv", tmp_path / "a")
    assert not [*(tmp_path / "a").glob("**/*.parquet")]
    assert not (tmp_path / "a" / "_work").exists()


def _replaced(old: str, new: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return edit


def _append(text: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(path.read_text() + text)


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a key twice": (
        _append("7,1990,,,\n"),
        r"each key 'id' must be there once, but 7 is in row \d+ of .*items.csv and row 41 of .*"
        r"items.csv: leave out all but one of its 2 rows",
    ),
    "no key": (_append(",1990,,,\n"), r"items.csv: row 41 must have a key 'id', it has none"),
    "a bad value": (_append("99,then,,,\n"), r"items.csv: line 42: year must be .*'then'.*correct"),
    "a bad key": (_append("x9,1990,,,\n"), r"items.csv: line 42: id must be an integer.*correct"),
    "too few fields": (_append("99,1990\n"), r"items.csv: line 42: must have 5 fields, got 2"),
    "other columns": (
        _replaced("year", "Year"),
        r"items.csv: .*'year' is absent from 'id', 'Year'",
    ),
    "no rows": (lambda path: path.write_text("id,year,genres,shop,vector\n"), "must have rows"),
    "no bytes": (lambda path: path.write_text(""), "must have rows, it has none"),
    "no text": (lambda path: path.write_bytes(b"PAR1\xff\x00\n"), r"items.csv: "),
    "other keys": (
        lambda path: path.write_text("id,year,genres,shop,vector\n1001,,,,\n"),
        r"some row of the input must have a row in items.csv by item, but 700 of 700 have none",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_side_table_is_refused_in_one_line(tmp_path: Path, name: str):
    table = prepared(tmp_path)
    breaks, message = BROKEN[name]
    breaks(tmp_path / "items.csv")
    with pytest.raises((DatasetError, UsageError), match=message) as caught:
        make(table, tmp_path / "events.csv", tmp_path / "a")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a" / "_dataset.json").exists()


def test_a_damaged_packed_or_absent_side_table_is_refused(tmp_path: Path):
    table = prepared(tmp_path)
    items = tmp_path / "items.csv.gz"
    items.write_bytes(gzip.compress((tmp_path / "items.csv").read_bytes())[:-30])
    packed = replace(table.joins[0], files=(str(items),))
    with pytest.raises(DatasetError, match=r"items.csv.gz: line \d+: .*(cut|damaged)"):
        make(
            replace(table, joins=(packed, table.joins[1])), tmp_path / "events.csv", tmp_path / "a"
        )
    items.unlink()
    with pytest.raises(UsageError, match=r"join of .*items.csv.gz .*must match a file"):
        make(
            replace(table, joins=(packed, table.joins[1])), tmp_path / "events.csv", tmp_path / "a"
        )


def test_a_text_key_that_is_there_twice_is_shown(tmp_path: Path):
    table = prepared(tmp_path)
    _append('"u3",c,1\nu3,c,2\n')(tmp_path / "users.csv")
    with pytest.raises(DatasetError, match=r"'u3' is in row \d+ of .* and row 26 .* of its 3 rows"):
        make(table, tmp_path / "events.csv", tmp_path / "a")


def test_a_side_table_of_too_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = prepared(tmp_path)
    monkeypatch.setattr(side_tables, "MAX_ROWS", 39)
    with pytest.raises(DatasetError, match=r"items.csv: must have at most 39 rows"):
        make(table, tmp_path / "events.csv", tmp_path / "a")


def test_a_required_row_that_is_absent_is_refused(tmp_path: Path):
    table = prepared(tmp_path, required=True)
    message = (
        r"each row of the input must have a row in items.csv by item, but \d+ of 700 have none"
    )
    with pytest.raises(DatasetError, match=message):
        make(table, tmp_path / "events.csv", tmp_path / "a")


def test_several_files_and_a_join_of_a_joined_column(tmp_path: Path):
    table = prepared(tmp_path)
    items = make_items()
    for place, part in enumerate((items[:15], items[15:])):
        write_events(tmp_path / "parts" / f"{place}.csv", part)
    shops = [{"shop": f"{shop:X}", "size": float(shop)} for shop in range(9)]
    write_events(tmp_path / "shops.jsonl", shops)
    node = table.to_json()
    node["join"][0]["file"] = [str(tmp_path / "parts" / "*.csv")]
    node["join"].append({
        "file": str(tmp_path / "shops.jsonl"), "format": "jsonl", "on": "shop",
        "column": [{"name": "size", "as": "numeric"}],
    })  # fmt: skip
    dataset = make(Table.parse(node), tmp_path / "events.csv", tmp_path / "a", eval_fraction=0)
    by_id = {item["id"]: item for item in items}
    rows = {row["number"]: row for row in read_split(dataset, "train").to_pylist()}
    for event in make_events():
        shop = by_id.get(event["item"], {}).get("shop")
        size = rows[event["number"]]["size"]
        assert np.isnan(size) if shop is None else size == int(shop, 16)
    assert [f.path for f in dataset.input.joins[0].files] == ["0.csv", "1.csv"]


def test_keys_match_as_the_events_declare_them(tmp_path: Path):
    # Ids of digits: integers of Parquet, floats that pandas makes of them, and texts.
    pq.write_table(pa.table({"k": [7.0, None, 8.0], "v": ["a", "b", "c"]}), tmp_path / "e.parquet")
    (tmp_path / "side.csv").write_text("k,x\n007,1\n8,2\n")
    columns = [{"name": "v", "as": "categorical", "type": "string"}]

    def values(kind: str) -> list[float]:
        key = {"name": "k", "as": "key", "type": kind}
        side = [{"name": "x", "as": "numeric"}]
        join = {"file": str(tmp_path / "side.csv"), "on": "k", "column": side}
        node = {"format": "parquet", "column": [key, *columns], "join": [join]}
        out = tmp_path / kind
        dataset = make(
            Table.parse(node), tmp_path / "e.parquet", out, eval_fraction=0, num_shards=1
        )
        rows = read_split(dataset, "train").to_pylist()
        return [row["x"] for row in sorted(rows, key=lambda r: "abc".index(_text(r["v"])))]

    def _text(number: int) -> str:
        return next(text for text in "abc" if fingerprint(text) == number)

    np.testing.assert_array_equal(values("integer"), [1, np.nan, 2])
    pq.write_table(pa.table({"k": [7, None, 8], "v": ["a", "b", "c"]}), tmp_path / "e.parquet")
    np.testing.assert_array_equal(values("string"), [np.nan, np.nan, 2])  # "7" is not "007"


def test_a_table_without_a_header_is_read_by_place_and_one_with_by_path(tmp_path: Path):
    write_events(tmp_path / "events.csv", make_events())
    (tmp_path / "items.txt").write_bytes(
        "".join(f"Ä|{i}|{i + 100}\n" for i in range(45)).encode("latin-1")
    )
    (tmp_path / "users.csv").write_text(
        "user:token,age:float\n" + "".join(f"u{i},{i}\n" for i in range(30))
    )
    (tmp_path / "schema.toml").write_text("""
        [[column]]
        name = "number"
        as = "key"
        type = "integer"
        keep = true
        [[column]]
        name = "user"
        as = "key"
        type = "string"
        [[column]]
        name = "item"
        as = "categorical"
        type = "integer"
        [[column]]
        names = ["time", "clicked"]
        as = "ignore"
        [[join]]
        file = "items.txt"
        on = "item"
        key = "id"
        delimiter = "|"
        quote = ""
        header = false
        encoding = "latin-1"
        column = [
          { name = "title", as = "categorical", type = "string" },
          { name = "id", as = "key", type = "integer" },
          { name = "price", as = "numeric" },
        ]
        [[join]]
        file = "users.csv"
        on = "user"
        key = "id"
        [[join.column]]
        name = "id"
        as = "key"
        type = "string"
        path = "user:token"
        [[join.column]]
        name = "age"
        as = "numeric"
        path = "age:float"
    """)
    # Files of a schema lie beside it, wherever the command runs.
    dataset = make(
        str(tmp_path / "schema.toml"), tmp_path / "events.csv", tmp_path / "a", eval_fraction=0
    )
    found = {row["number"]: row for row in read_split(dataset, "train").to_pylist()}
    for event in make_events():
        row = found[event["number"]]
        assert row["title"] == (-1 if event["item"] is None else fingerprint("Ä"))
        price, age = event["item"], event["user"]
        np.testing.assert_equal(row["price"], np.nan if price is None else price + 100)
        np.testing.assert_equal(row["age"], np.nan if age is None else float(age[1:]))


def test_histories_and_negatives_have_the_columns_of_their_items(tmp_path: Path):
    items = [{"id": item, "shop": f"{item % 7:x}"} for item in range(45)]
    events = [event | {"clicked": 1} for event in make_events() if event["item"] is not None]
    write_events(tmp_path / "events.csv", events)
    write_events(tmp_path / "items.csv", items)
    past = {"name": "shops", "as": "list", "type": "hex", "history": {"of": "shop", "by": "user"}}
    node = {
        "column": [*EVENTS, past],
        "join": [
            {
                "file": str(tmp_path / "items.csv"),
                "on": "item",
                "key": "id",
                "column": [{"name": "shop", "as": "categorical", "type": "hex"}],
            }
        ],
    }
    drawn = options_of(Table.parse(node), tmp_path / "events.csv", tmp_path / "a").negatives
    drawn = replace(drawn, negatives=2, negatives_of=("item",))
    dataset = make(
        Table.parse(node), tmp_path / "events.csv", tmp_path / "a", negatives=drawn, eval_fraction=0
    )
    rows = read_split(dataset, "train").to_pylist()
    assert len(rows) == 3 * len(events)
    assert all(row["shop"] == row["item"] % 7 for row in rows)
    by_number = {event["number"]: event for event in events}
    for row in rows:
        event = by_number[row["number"]]
        earlier = [
            other["item"] % 7
            for other in sorted(events, key=lambda each: each["time"])
            if event["user"] and other["user"] == event["user"] and other["time"] < event["time"]
        ]
        assert row["shops"] == earlier[-50:]


def _joined_schema(**settings: Any) -> dict[str, Any]:
    column = settings.pop("column", [{"name": "year", "as": "numeric"}])
    return {
        "column": EVENTS,
        "join": [{"file": "i.csv", "on": "item", "column": column, **settings}],
    }


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            _joined_schema(file=""),
            "a join must have file = a path, or a list of paths, got \\[''\\]",
        ),
        (_joined_schema(file=[]), "a join must have file"),
        (_joined_schema(on=""), r"join of i.csv: on must be the column of the rows"),
        (_joined_schema(on="shop"), "there is no column 'shop'"),
        (_joined_schema(on="time"), "on must be a key or categorical column of the input"),
        (_joined_schema(on="year", key="id"), "on must be a key or categorical column"),
        (_joined_schema(column=[]), "join of i.csv: it must have columns besides its key 'item'"),
        (
            _joined_schema(column=[{"name": "user", "as": "numeric"}]),
            r"column names must differ, \['user'\] are repeated",
        ),
        (
            _joined_schema(column=[{"name": "w", "as": "weight"}]),
            "column 'w' must be one that may be missing",
        ),
        (
            _joined_schema(column=[{"name": "y", "as": "label"}]),
            "column 'y' must be one that may be missing",
        ),
        (
            _joined_schema(
                column=[
                    {"name": "item", "as": "key", "type": "string"},
                    {"name": "x", "as": "numeric"},
                ]
            ),
            "its key 'item' must be declared as = \"key\" with the type 'integer' of 'item'",
        ),
        (_joined_schema(header=False), "key 'item' must be among its columns, in the order"),
        (_joined_schema(header="auto"), "key 'item' must be among its columns, in the order"),
        (_joined_schema(format="xml"), "join of i.csv: format must be one of"),
        (_joined_schema(format="jsonl", quote=""), "quote must not be there for format = 'jsonl'"),
        (_joined_schema(required="yes"), "join of i.csv: it: required must be true or false"),
        (_joined_schema(keys="id"), "a schema has no keys"),
        (_joined_schema(name="x"), "a join has no name and no feature"),
        (
            _joined_schema(
                column=[
                    {
                        "name": "h",
                        "as": "list",
                        "type": "integer",
                        "history": {"of": "item", "by": "user"},
                    }
                ]
            ),
            r"a history is a \[\[column\]\] of the schema, \['h'\] are of the join",
        ),
        ({"column": EVENTS, "join": {"file": "i.csv"}}, r"join must be \[\[join\]\] tables"),
    ],
)
def test_a_join_that_cannot_be_is_refused(node: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        Table.parse(node)


def test_a_stored_table_has_its_joins(tmp_path: Path):
    table = prepared(tmp_path)
    assert Table.parse(json.loads(json.dumps(table.to_json()))) == table
    assert [c.name for c in table.of_input.columns] == [c["name"] for c in EVENTS]


def test_raw_records_must_have_the_joined_columns_themselves(tmp_path: Path):
    table = prepared(tmp_path)
    dataset = make(table, tmp_path / "events.csv", tmp_path / "a", eval_fraction=0)
    fitted = Transforms.of(dataset).table

    def reader(**settings: Any) -> RawReader:
        transforms = Transforms(table=replace(fitted, **settings))
        return RawReader(transforms, ["year", "genres"], [], 1000)

    with pytest.raises(DatasetError, match=r"'year', 'genres' is absent.*ingestion joined 'year'"):
        list(reader().read(tmp_path / "events.csv"))
    for kind, message in (("jsonl", "no line has genres, year: "), ("parquet", "'year', it has")):
        events = write_events(tmp_path / f"events.{kind}", make_events())
        with pytest.raises(UsageError, match=f"{message}.*ingestion joined"):
            list(reader(format=kind).read(events))
    with pytest.raises(UsageError, match="must have 11 fields, got 5: ingestion joined"):
        list(reader(header=False).read(tmp_path / "events.csv"))
    whole = joined_beforehand(make_events(), make_items(), make_users())
    rows = read_split(dataset, "train").sort_by("number")
    for kind in ("csv", "jsonl", "parquet"):
        records = list(reader(format=kind).read(write_events(tmp_path / f"whole.{kind}", whole)))
        made = pa.Table.from_batches([each.features for each in records])
        assert made["genres"].to_pylist() == rows["genres"].to_pylist()
        np.testing.assert_array_equal(made["year"].to_numpy(), rows["year"].to_numpy())


def test_rows_in_memory_and_later_days_are_joined_too(tmp_path: Path):
    table = prepared(tmp_path)
    first = make(table, tmp_path / "events.csv", tmp_path / "a", eval_fraction=0)
    rows = pa.Table.from_pylist(make_events())
    made = Dataset.from_arrow(rows, tmp_path / "b", schema=table.to_json(), eval_fraction=0)
    columns = ["number", "year", "genres", "city"]
    ours, others = (as_rows(read_split(d, "train").select(columns)) for d in (first, made))
    assert ours == others
    (tmp_path / "items.csv").write_text("id,year,genres,shop,vector\n3,1999,,,\n")
    later = make(
        table,
        tmp_path / "events.csv",
        tmp_path / "c",
        eval_fraction=0,
        transforms_of=tmp_path / "a",
    )
    assert later.transforms_digest == first.transforms_digest
    years = read_split(later, "train")["year"].to_numpy()
    of_three = sum(event["item"] == 3 for event in make_events())
    assert np.isfinite(years).sum() == of_three > 0


def test_the_command_says_what_was_joined(tmp_path: Path, capsys: Any):
    write_events(tmp_path / "events.csv", make_events())
    write_events(tmp_path / "items.csv", make_items())
    node = ["[[column]]\nname='number'\nas='ignore'\n[[column]]\nname='user'\nas='ignore'"]
    node += ["[[column]]\nname='item'\nas='categorical'\ntype='integer'"]
    node += ["[[column]]\nnames=['time','clicked']\nas='ignore'"]
    node += [
        "[[join]]\nfile='items.csv'\non='item'\nkey='id'\n[[join.column]]\nname='year'\nas='numeric'"
    ]
    (tmp_path / "s.toml").write_text("\n".join(node))
    argv = ["--schema", tmp_path / "s.toml", "--input", tmp_path / "events.csv"]
    for _ in range(2):  # the second run keeps the dataset
        ingest.main([*map(str, argv), "--output", str(tmp_path / "a")])
        unmatched = sum(event["item"] is None or event["item"] > 39 for event in make_events())
        said = capsys.readouterr().out
        assert f"items.csv: 40 rows joined by item; {unmatched} of the rows read have none" in said


def test_real_ratings_get_the_columns_of_their_films_and_users(samples: Path, tmp_path: Path):
    read = [
        {line.split("\t")[0]: line.split("\t") for line in path.read_text().splitlines()[1:]}
        for path in (samples / "movielens_100k_item.txt", samples / "movielens_100k_user.txt")
    ]
    unread = sorted({film[2] for film in read[0].values() if not film[2].isdigit()})
    assert len(unread) > 1  # years that are none, which the table must declare
    columns = Table.load("movielens_100k").to_json()
    columns["join"] = [
        {
            "file": str(samples / "movielens_100k_item.txt"),
            "on": "item_id", "key": "id", "delimiter": "\t", "quote": "",
            "missing": unread,
            "column": [
                {"name": "id", "as": "key", "type": "integer", "path": "item_id:token"},
                {"name": "year", "as": "numeric", "path": "release_year:token"},
                {"name": "genres", "as": "list", "type": "string", "path": "class:token_seq"},
            ],
        },
        {
            "file": str(samples / "movielens_100k_user.txt"),
            "on": "user_id", "key": "id", "delimiter": "\t", "quote": "",
            "column": [
                {"name": "id", "as": "key", "type": "integer", "path": "user_id:token"},
                {"name": "age", "as": "numeric", "path": "age:token"},
                {"name": "job", "as": "categorical", "type": "string", "path": "occupation:token"},
            ],
        },
    ]  # fmt: skip
    del columns["feature"]
    table = Table.parse(columns)
    dataset = make(table, samples / "movielens_100k_u.data.gz", tmp_path / "a", eval_fraction=0)
    assert [len(each) for each in read] == [side.rows for side in dataset.input.joins]
    assert [side.unmatched for side in dataset.input.joins] == [0, 0]
    rows = read_split(dataset, "train").to_pylist()
    assert len(rows) == 100_000
    for row in rows[::97]:
        film, user = read[0][str(row["item_id"])], read[1][str(row["user_id"])]
        year = float(film[2]) if film[2].isdigit() else np.nan
        np.testing.assert_equal(row["year"], year)
        assert row["genres"] == [fingerprint(genre) for genre in film[3].split()]
        assert (row["age"], row["job"]) == (float(user[1]), fingerprint(user[3]))
