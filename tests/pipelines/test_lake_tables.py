"""Tables of Delta Lake and Iceberg, written by their own libraries, read by their snapshots."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedps.data.dataset import Dataset
from embedps.errors import DatasetError, UsageError
from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint
from embedps.features.transforms import Transforms
from embedps.pipelines.infer import InferConfig, infer
from embedps.pipelines.ingestion import lake_files
from embedps.pipelines.ingestion.input_files import find_inputs
from embedps.pipelines.ingestion.raw_records import RawReader
from tests.builders import read_split
from tests.commands import run
from tests.pipelines.builders import files_of
from tests.pipelines.lakes import (
    add_delta_commit,
    delete_by_file,
    delete_by_vector,
    delta_actions,
    set_features,
)
from tests.pipelines.shop import as_rows, make

deltalake = pytest.importorskip("deltalake", reason="needs pip install 'embedps[lake]'")
pytest.importorskip("pyiceberg", reason="needs pip install 'embedps[lake]'")

Y = {"name": "y", "as": "label"}
NUMBER = {"name": "n", "as": "categorical", "type": "integer"}
DAY = {"name": "day", "as": "timestamp"}
CITY = {"name": "city", "as": "categorical", "type": "string"}
EXTRA = {"name": "extra", "as": "numeric"}
AT = pa.timestamp("us", "UTC")
TWO_WORKERS = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    lake_files._opened.cache_clear()


def table_of(*columns: dict[str, Any]) -> Table:
    return Table.parse({"format": "parquet", "column": [Y, NUMBER, *columns]})


def rows_of(first: int, last: int, **more: Any) -> pa.Table:
    numbers = list(range(first, last))
    columns: dict[str, Any] = {
        "y": [n % 2 for n in numbers],
        "n": numbers,
        "day": pa.array([dt.date(2024, 5, 1 + n % 3) for n in numbers]),
        "city": [["a b/c%=é", "", None, "x"][n % 4] for n in numbers],
    }
    return pa.table(columns | {name: [of(n) for n in numbers] for name, of in more.items()})


def read(location: Path | str, folder: Path, *columns: dict[str, Any], **more: Any) -> Dataset:
    return make(table_of(*columns), location, folder, eval_fraction=0, **more)


def numbers(dataset: Dataset) -> list[int]:
    return sorted(read_split(dataset, "train")["n"].to_pylist())


def write_delta(folder: Path, **settings: Any) -> Path:
    """A table of four versions: 20 rows, 10 more with a column more, then without some."""
    deltalake.write_deltalake(folder, rows_of(0, 20), **settings)
    more = rows_of(20, 30, extra=float)
    deltalake.write_deltalake(folder, more, mode="append", schema_mode="merge", **settings)
    deltalake.DeltaTable(folder).delete("n < 5")
    deltalake.DeltaTable(folder).update(updates={"city": "'moved'"}, predicate="n = 7")
    return folder


@pytest.mark.parametrize("by", [None, ["day"], ["city", "day"]], ids=str)
def test_a_delta_table_gives_the_rows_of_its_version(tmp_path: Path, by: list[str] | None):
    folder = write_delta(tmp_path / "a b#é", partition_by=by)
    columns = (DAY, CITY, EXTRA)
    dataset = read(folder, tmp_path / "out", *columns)
    assert numbers(dataset) == list(range(5, 30))
    record = {"kind": "delta", "location": str(folder), "version": 3}
    assert dataset.input.options["tables"] == [record]
    pq.write_table(deltalake.DeltaTable(folder).to_pyarrow_table(), tmp_path / "plain.parquet")
    plain = read_split(read(tmp_path / "plain.parquet", tmp_path / "plain", *columns), "train")
    rows = read_split(dataset, "train")
    assert as_rows(rows) == as_rows(plain)
    cities = dict(zip(rows["n"].to_pylist(), rows["city"].to_pylist(), strict=True))
    assert cities[7] == fingerprint("moved")
    assert cities[8] == fingerprint("a b/c%=é")
    first = read(f"{folder}@0", tmp_path / "first", DAY, CITY)
    assert numbers(first) == list(range(20))
    assert first.input.options["tables"] == [record | {"version": 0}]
    with pytest.raises(DatasetError, match=r"must have columns extra, it has y, n, day, city$"):
        read(f"{folder}@0", tmp_path / "no", EXTRA)


def test_the_values_of_partitions_have_their_types(tmp_path: Path):
    kinds = {
        "whole": pa.array([7, None], pa.int16()),
        "share": pa.array([0.25, None]),
        "at": pa.array([dt.datetime(2024, 5, 1, 10, 30, tzinfo=dt.UTC), None], AT),
        "amount": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        "flag": pa.array([True, None]),
    }  # fmt: skip
    for name, values in kinds.items():
        data = pa.table({"y": [0, 1], "n": [0, 1], name: values})
        column = {"name": name, "as": "numeric"}
        if name == "at":
            data, column = data.slice(0, 1), {"name": name, "as": "timestamp"}
        deltalake.write_deltalake(tmp_path / name, data, partition_by=[name])
        pq.write_table(data, tmp_path / f"{name}.parquet")
        found, wanted = (
            as_rows(read_split(read(tmp_path / of, tmp_path / f"out-{of}", column), "train"))
            for of in (name, f"{name}.parquet")
        )
        assert found == wanted


@pytest.mark.parametrize("rows", [[1, 3], [19], [*range(20)]], ids=["two", "the last", "all"])
def test_rows_that_a_deletion_vector_has_are_not_read(tmp_path: Path, rows: list[int]):
    folder = tmp_path / "table"
    deltalake.write_deltalake(folder, rows_of(0, 20))
    deltalake.write_deltalake(folder, rows_of(20, 30), mode="append")
    set_features(folder, "deletionVectors")
    first = delta_actions(folder, "add")[0]
    vector = delete_by_vector(folder, first, rows)
    left = [n for n in range(30) if n not in rows]
    assert numbers(read(folder, tmp_path / "out", DAY)) == left
    assert numbers(read(f"{folder}@2", tmp_path / "before")) == list(range(30))
    lake_files._opened.cache_clear()
    vector.unlink()
    with pytest.raises(UsageError, match=r"a Delta table that cannot be read: .* not found"):
        read(folder, tmp_path / "gone")


def test_a_deletion_vector_of_a_partition_is_found_by_its_escaped_path(tmp_path: Path):
    folder = tmp_path / "é #t"
    deltalake.write_deltalake(folder, rows_of(0, 20), partition_by=["city"])
    set_features(folder, "deletionVectors")
    found = {each["partitionValues"]["city"]: each for each in delta_actions(folder, "add")}
    delete_by_vector(folder, found["a b/c%=é"], [0, 4])
    assert numbers(read(folder, tmp_path / "out")) == [n for n in range(20) if n not in (0, 16)]


def test_what_a_delta_table_has_and_is_not_read_is_named(tmp_path: Path):
    folder = tmp_path / "table"
    deltalake.write_deltalake(folder, rows_of(0, 20))
    shutil.copytree(folder, tmp_path / "mapped")
    meta = delta_actions(folder, "metaData")[0]
    mapped = meta | {"configuration": {"delta.columnMapping.mode": "name"}}
    add_delta_commit(tmp_path / "mapped", [{"metaData": mapped}])
    cases = {"mapped": "it has columnMapping", "clone": "shallow clone", "newer": "someday"}
    shutil.copytree(folder, tmp_path / "clone")
    add = delta_actions(folder, "add")[0]
    add_delta_commit(
        tmp_path / "clone", [{"add": add | {"path": f"file://{folder}/{add['path']}"}}]
    )
    shutil.copytree(folder, tmp_path / "newer")
    set_features(tmp_path / "newer", "someday")
    for name, text in cases.items():
        with pytest.raises(UsageError, match=rf"^--input .*/{name}: a Delta table.*{text}"):
            find_inputs([str(tmp_path / name)])
    with pytest.raises(UsageError, match=r"a Delta table that cannot be read: .*version 9"):
        find_inputs([f"{folder}@9"])
    with pytest.raises(UsageError, match=r"its version must be a number, got 'main'"):
        find_inputs([f"{folder}@main"])
    with pytest.raises(UsageError, match=r"must name a version after @"):
        find_inputs([f"{folder}@"])
    os.rename(folder, tmp_path / "a%20b")
    with pytest.raises(UsageError, match=r"its path must have no %, which deltalake takes for"):
        find_inputs([str(tmp_path / "a%20b")])


def test_a_table_that_lost_a_file_is_refused(tmp_path: Path):
    folder = write_delta(tmp_path / "table")
    deltalake.DeltaTable(folder).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert numbers(read(folder, tmp_path / "out")) == list(range(5, 30))
    with pytest.raises(UsageError, match=r"must be there and readable, it is not: give a version"):
        find_inputs([f"{folder}@0"])
    damaged = next(folder.glob("*.parquet"))
    for path in folder.glob("*.parquet"):
        damaged = path if path.name in deltalake.DeltaTable(folder).file_uris()[0] else damaged
    data = damaged.read_bytes()
    damaged.write_bytes(data[: len(data) // 2])
    with pytest.raises(DatasetError, match=r"cut, damaged or gone"):
        read(folder, tmp_path / "cut")
    log = max(folder.glob("_delta_log/*.json"))
    log.write_text("{")
    lake_files._opened.cache_clear()
    with pytest.raises(UsageError, match=r"a Delta table that cannot be read: "):
        find_inputs([str(folder)])


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_bare_files_of_a_table_are_refused(tmp_path: Path, kind: str):
    if kind == "delta":
        folder = write_delta(tmp_path / "lake/table", partition_by=["day"])
    else:
        make_iceberg(tmp_path / "lake")
        folder = tmp_path / "lake/shop/clicks"
    file = next(folder.rglob("*.parquet"))
    (tmp_path / "link").symlink_to(file.parent)
    (tmp_path / "one.parquet").symlink_to(file)
    for given in (
        file,
        f"{folder}/**/*.parquet",
        f"{file.parent}",
        tmp_path / "lake",
        f"{tmp_path}/lake/**.parquet",
        tmp_path / "link",
        tmp_path / "one.parquet",
        f"{folder}/../{folder.name}/**/*.parquet",
    ):
        with pytest.raises(UsageError, match=f"{folder} is an? .* rows too that were deleted"):
            find_inputs([str(given)])
    assert find_inputs([str(folder)])
    dataset = read(folder, tmp_path / "out")
    reader = RawReader(Transforms.of(dataset), ["n"], [], 100)
    with pytest.raises(UsageError, match=r"rows too that were deleted: write its rows to plain"):
        next(reader.read(file))
    (tmp_path / "hudi/.hoodie").mkdir(parents=True)
    pq.write_table(rows_of(0, 3), tmp_path / "hudi/a.parquet")
    for given in (tmp_path / "hudi", tmp_path / "hudi/a.parquet"):
        with pytest.raises(UsageError, match=r"is a Hudi table, .*: write its rows to plain files"):
            find_inputs([str(given)])


def test_a_format_or_library_that_is_not_there_is_named(tmp_path: Path, monkeypatch: Any):
    folder = write_delta(tmp_path / "table")
    table = Table.parse({"format": "csv", "column": [Y, NUMBER]})
    with pytest.raises(UsageError, match=r'must have format = "parquet", got \'csv\' for .*table'):
        make(table, folder, tmp_path / "out")
    monkeypatch.delitem(sys.modules, "embedps.pipelines.ingestion.delta_table", raising=False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(UsageError, match=r": a Delta table is read by deltalake, .* pip install"):
        find_inputs([str(folder)])


def test_a_finished_dataset_is_of_one_version(tmp_path: Path):
    folder = write_delta(tmp_path / "table")
    read(folder, tmp_path / "out")
    before = files_of(tmp_path / "out")
    deltalake.DeltaTable(folder).delete("n = 29")
    with pytest.raises(UsageError, match=r"made with .*'version': 3.*, wanted another tables"):
        read(folder, tmp_path / "out")
    read(f"{folder}@3", tmp_path / "out")  # kept
    assert files_of(tmp_path / "out") == before
    assert numbers(read(folder, tmp_path / "out", force=True)) == list(range(5, 29))


def test_a_file_of_two_versions_is_refused(tmp_path: Path):
    folder = write_delta(tmp_path / "table")
    assert find_inputs([str(folder), f"{folder}@3"]) == find_inputs([str(folder)])
    with pytest.raises(UsageError, match=r"each file once, .*\.parquet is in two versions"):
        find_inputs([str(folder), f"{folder}@2"])
    with pytest.raises(UsageError, match="--input and --eval-input must not both match"):
        find_inputs([f"{folder}@1"], [f"{folder}@0"])


@pytest.mark.multiprocess
def test_workers_give_the_same_bytes(tmp_path: Path):
    folder = write_delta(tmp_path / "table", partition_by=["day"])
    for name, flags in (("one", ()), ("two", TWO_WORKERS)):
        dataset = make(table_of(DAY), folder, tmp_path / name, beam_flags=flags)
        assert sum(split.rows for split in dataset.splits.values()) == 25
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_a_side_table_may_be_one_too(tmp_path: Path):
    folder = write_delta(tmp_path / "table")
    node = {
        "format": "parquet",
        "column": [Y, NUMBER],
        "join": [
            {"file": f"{folder}@3", "on": "n", "format": "parquet", "column": [EXTRA, CITY]}
        ],
    }  # fmt: skip
    dataset = make(Table.parse(node), f"{folder}@0", tmp_path / "out", eval_fraction=0)
    (side,) = dataset.input.joins
    assert (side.rows, side.unmatched) == (25, 5)
    versions = [each["version"] for each in dataset.input.options["tables"]]
    assert versions == [0, 3]


def test_a_schema_is_proposed_of_a_table(tmp_path: Path, capsys: Any):
    folder = write_delta(tmp_path / "table", partition_by=["day"])
    text = infer(InferConfig(input=str(folder), label="y"))
    assert 'format = "parquet"' in text
    assert all(f'name = "{name}"' in text for name in ("y", "n", "day", "city", "extra"))


def make_iceberg(folder: Path, *, is_plain: bool = False) -> Any:
    """A table that loses rows, and has a column renamed, one dropped, and another of its name.

    A plain one has the first 20 rows, in one file.
    """
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import DoubleType, LongType

    folder.mkdir(parents=True, exist_ok=True)
    uri = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    catalog = SqlCatalog("prod", **uri)
    catalog.create_namespace("shop")
    first = rows_of(0, 20, price=float)
    table = catalog.create_table("shop.clicks", first.schema, properties={"format-version": "2"})
    if is_plain:
        table.append(first)
        return table
    with table.update_spec() as spec:
        spec.add_field("day", IdentityTransform(), "day")
    table.append(first)
    with table.update_schema() as schema:
        schema.add_column("extra", DoubleType())
    table.append(rows_of(20, 30, price=float, extra=float))
    table.delete("n < 5")
    with table.update_schema(allow_incompatible_changes=True) as schema:
        schema.rename_column("city", "town")
        schema.delete_column("price")
    with table.update_schema() as schema:
        schema.add_column("price", LongType())
    return table


def test_an_iceberg_table_gives_the_rows_of_its_snapshot(tmp_path: Path, monkeypatch: Any):
    table = make_iceberg(tmp_path / "lake")
    folder = tmp_path / "lake/shop/clicks"
    town, price = CITY | {"name": "town"}, {"name": "price", "as": "numeric"}
    columns = (DAY, town, EXTRA, price)
    dataset = read(folder, tmp_path / "out", *columns)
    assert numbers(dataset) == list(range(5, 30))
    record = {
        "kind": "iceberg",
        "location": str(folder),
        "version": table.current_snapshot().snapshot_id,
    }
    assert dataset.input.options["tables"] == [record]
    pq.write_table(table.scan().to_arrow(), tmp_path / "plain.parquet")
    plain = read_split(read(tmp_path / "plain.parquet", tmp_path / "plain", *columns), "train")
    assert as_rows(read_split(dataset, "train")) == as_rows(plain)
    assert plain["price"].null_count + sum(x != x for x in plain["price"].to_pylist()) == 25
    # A snapshot of before has its own columns.
    first = table.snapshots()[0].snapshot_id
    old = read(f"{folder}@{first}", tmp_path / "first", DAY, CITY, price)
    assert numbers(old) == list(range(20))
    assert sorted(read_split(old, "train")["price"].to_pylist()) == [float(n) for n in range(20)]
    table.manage_snapshots().create_tag(first, "before").commit()
    tagged = read(f"{folder}@before", tmp_path / "tagged", DAY, CITY, price)
    assert tagged.input.options["tables"][0]["version"] == first
    by_file = read(table.metadata_location.removeprefix("file://"), tmp_path / "file", *columns)
    assert as_rows(read_split(by_file, "train")) == as_rows(plain)
    for given, text in (
        (f"{folder}@77", "it must have the snapshot 77, it has "),
        (f"{folder}@nobody", "it must have the snapshot nobody, it has "),
        ("iceberg://none/shop.clicks", "that cannot be read: "),
    ):
        with pytest.raises(UsageError, match=f"^--input .*: an Iceberg table.*{text}"):
            find_inputs([given])


@pytest.mark.multiprocess
def test_an_iceberg_table_is_found_by_its_catalog(tmp_path: Path):
    table = make_iceberg(tmp_path / "lake")
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().create_tag(first, "before").commit()
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'format = "parquet"\n[[column]]\nname = "y"\nas = "label"\n'
        '[[column]]\nname = "n"\nas = "categorical"\ntype = "integer"\n'
    )
    command = ["-m", "embedps.pipelines.ingest", "--schema", schema, "--num-shards", 1]
    settings = {
        f"PYICEBERG_CATALOG__PROD__{name}": table.catalog.properties[name.lower()]
        for name in ("URI", "WAREHOUSE")
    }
    for at, wanted in (("", range(5, 30)), ("@before", range(20)), (f"@{first}", range(20))):
        given, out = f"iceberg://prod/shop.clicks{at}", tmp_path / f"out{at}"
        run(*command, "--input", given, "--output", out, "--eval-fraction", 0, **settings)
        assert numbers(Dataset.open(out)) == [*wanted]
    absent = ["--input", "iceberg://prod/shop.none", "--output", tmp_path / "none"]
    done = run(*command, *absent, code=2, **settings)
    assert "iceberg://prod/shop.none: an Iceberg table that cannot be read: " in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_written_while_a_job_runs_is_not_read(tmp_path: Path):
    table = make_iceberg(tmp_path / "lake")
    folder = tmp_path / "lake/shop/clicks"
    tasks = find_inputs([str(folder)])
    table.append(rows_of(30, 40).rename_columns(["y", "n", "day", "town"]))
    with table.update_schema() as schema:
        schema.rename_column("town", "village")
    lake_files._opened.cache_clear()  # as in another process
    of = tasks[0].of_lake
    assert of is not None
    assert "town" in of.schema.names
    assert len(of.table.files.files) == len(tasks)


def test_rows_that_iceberg_deletes_by_files_are_not_read(tmp_path: Path):
    table = make_iceberg(tmp_path / "lake", is_plain=True)
    folder = tmp_path / "lake/shop/clicks"
    (task,) = table.scan().plan_files()
    deleted = delete_by_file(table, [(task.file.file_path, 3), (task.file.file_path, 19)])
    left = [n for n in range(20) if n not in (3, 19)]
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == left
    assert numbers(read(folder, tmp_path / "out")) == left
    content = deleted.read_bytes()
    deleted.unlink()
    for allowed in (False, True):
        with pytest.raises(DatasetError, match=r"cut, damaged or gone|lines may be bad"):
            read(folder, tmp_path / "gone", allow_damaged_files=allowed)
    deleted.write_bytes(content)
    delete_by_file(table, [("a", 3)], by_value=True)
    with pytest.raises(UsageError, match="does not yet support equality deletes"):
        find_inputs([str(folder)])


def test_it_must_be_told_which_metadata_of_iceberg_is_the_newest(tmp_path: Path):
    table = make_iceberg(tmp_path / "lake")
    newest = Path(table.metadata_location.removeprefix("file://"))
    folder = newest.parent.parent
    other = newest.with_name(newest.name[:6] + "other.metadata.json")
    other.write_bytes(newest.read_bytes())
    with pytest.raises(UsageError, match=rf"one newest file of metadata .* {newest.name}.*, 0"):
        find_inputs([str(folder)])
    other.unlink()
    shutil.move(folder, tmp_path / "moved")
    with pytest.raises(UsageError, match=r"must be there|cannot be read: .*(not|No such)"):
        find_inputs([str(tmp_path / "moved")])
    newest = next((tmp_path / "moved/metadata").glob(newest.name))
    newest.write_text("{}")
    with pytest.raises(UsageError, match=r"an Iceberg table that cannot be read: "):
        find_inputs([str(tmp_path / "moved")])
