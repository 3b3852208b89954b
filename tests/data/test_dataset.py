"""A dataset directory is read back as it was saved; each defect is named."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import (
    CategoricalFeature,
    DataFile,
    InputFile,
    InputSummary,
    NumericFeature,
    Split,
)
from embedps.errors import DatasetError, EmbedpsError

JSON, SHARD = "_dataset.json", "train/shard-00000-of-00001.parquet"


def make_file(root: Path, path: str, rows: int) -> DataFile:
    table = pa.table(
        {
            "label": pa.array([float(i % 2) for i in range(rows)], pa.float32()),
            "I1": pa.array([0.5] * rows, pa.float32()),
            "C1": pa.array(range(rows), pa.int64()),
        }
    )
    (root / path).parent.mkdir(exist_ok=True)
    pq.write_table(table, root / path, row_group_size=4)
    data = (root / path).read_bytes()
    groups = tuple(min(4, rows - at) for at in range(0, rows, 4))
    return DataFile(
        path=path,
        rows=rows,
        bytes=len(data),
        xxh3_64=xxhash.xxh3_64_hexdigest(data),
        row_groups=groups,
    )


def make_dataset(root: Path) -> Dataset:
    """A saved dataset of one training shard of 10 rows and one held-out shard of 3."""
    splits = {}
    for name, rows in (("train", 10), ("eval", 3)):
        file = make_file(root, f"{name}/shard-00000-of-00001.parquet", rows)
        splits[name] = Split(rows=rows, positives=rows // 2, files=(file,))
    dataset = Dataset(
        directory=root,
        numeric=(NumericFeature(name="I1", missing=2),),
        categorical=(
            CategoricalFeature(name="C1", cardinality=10, cardinality_exact=False, missing=1),
        ),
        schema={"label": "float", "I1": "float", "C1": "int64"},
        splits=splits,
        input=InputSummary(
            files=(InputFile(path="a.tsv", bytes=9, xxh3_64="0" * 16, lines=14, lines_bad=1),),
            lines_read=14,
            lines_bad=1,
            options={"seed": 3},
        ),
    )
    dataset.save()
    return dataset


def edit(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = root / "_dataset.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_open_gives_what_was_saved(tmp_path: Path):
    dataset = make_dataset(tmp_path)
    assert Dataset.open(tmp_path) == dataset
    assert Dataset.open(str(tmp_path)) == dataset
    document = json.loads((tmp_path / "_dataset.json").read_text())
    assert (document["format"], document["version"]) == ("embedps.dataset", 1)
    assert document["missing_id"] == -1
    assert document["splits"]["train"]["files"][0]["row_groups"] == [4, 4, 2]
    assert "directory" not in document


def test_columns_and_paths_are_in_order_and_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_dataset(tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    dataset = Dataset.open(tmp_path.name)
    assert dataset.columns == ("label", "I1", "C1")
    assert dataset.paths("train") == (tmp_path / "train/shard-00000-of-00001.parquet",)
    assert dataset.absolute_path(dataset.split("eval").files[0]).is_file()


def test_directory_may_be_moved(tmp_path: Path):
    (tmp_path / "a").mkdir()
    make_dataset(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert all(path.is_file() for path in Dataset.open(tmp_path / "b").paths("train"))


def test_unknown_split_is_named(tmp_path: Path):
    with pytest.raises(DatasetError, match="no split 'test', there is train, eval"):
        make_dataset(tmp_path).split("test")


def test_absent_directory_is_named(tmp_path: Path):
    with pytest.raises(DatasetError, match=r"absent: no such dataset directory.*pipelines\.ingest"):
        Dataset.open(tmp_path / "absent")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d.update(format="parquet"),
            "format must be 'embedps.dataset', got 'parquet'",
        ),
        (lambda d: d.update(version=2), "version must be 1, got 2: make the dataset again"),
        (lambda d: d.pop("splits"), "splits must be there, it is absent"),
        (
            lambda d: d["splits"]["train"].update(rows="10"),
            "splits.train.rows must be int, got '10'",
        ),
        (
            lambda d: d["splits"]["train"].update(rows=True),
            "splits.train.rows must be int, got True",
        ),
        (lambda d: d["splits"]["train"].update(rows=-1), "rows must be within 0..2**63-1, got -1"),
        (lambda d: d["splits"]["train"].update(rows=11), "must hold its 11 rows, they hold 10"),
        (lambda d: d["splits"]["train"].update(positives=11), "positives must be within 0..10"),
        (
            lambda d: d["splits"]["eval"]["files"][0].update(row_groups=[2]),
            "row groups must add up to its 3 rows, they give 2",
        ),
        (
            lambda d: d["splits"]["eval"]["files"][0].update(row_groups=[3, -1, 1]),
            "files[0].row_groups[1] must be within 0..2**63-1, got -1",
        ),
        (
            lambda d: d["splits"]["eval"]["files"][0].update(row_groups=[2, True]),
            "files[0].row_groups[1] must be int, got True",
        ),
        (lambda d: d.update(missing_id=2**70), "missing_id must be within -9223372036854775808.."),
        (lambda d: d.update(missing_id=-(2**63) - 1), "2**63-1, got -9223372036854775809"),
        (lambda d: d.update(missing_id=10**4000), "2**63-1, got 1000000"),
        (lambda d: d.update(missing_id=float("nan")), "missing_id must be int, got nan"),
        (lambda d: d.update(missing_id=-1.0), "missing_id must be int, got -1.0"),
        (lambda d: d["splits"]["train"].update(positives=2**63), "positives must be within 0.."),
        (lambda d: d["categorical"][0].update(cardinality=2**70), "cardinality must be within 0"),
        (lambda d: d["numeric"][0].update(missing=2**64), "numeric[0].missing must be within 0.."),
        (lambda d: d["input"].update(lines_read=2**99), "input.lines_read must be within 0.."),
        (lambda d: d["numeric"].append(7), "numeric[1].name must be there, it is absent"),
        (lambda d: d["categorical"].append(None), "categorical[1].name must be there"),
        (lambda d: d["splits"].update(train=[]), "splits.train.rows must be there"),
        (lambda d: d["schema"].update(C1=[]), "column 'C1' must have Arrow type int64, got []"),
        (
            lambda d: d["splits"]["eval"]["files"][0].update(path="eval/a\0b"),
            "files[0].path must be text without NUL, got 'eval/a\\x00b'",
        ),
        (lambda d: d.update(label="a\0"), "label must be text without NUL"),
        (lambda d: d.update(label="\ud800"), "must be a JSON document: 'utf-8' codec can't encode"),
        (
            lambda d: d["splits"]["eval"]["files"][0].update(path="../x.parquet"),
            "must be inside the dataset, got '../x.parquet'",
        ),
        (lambda d: d["schema"].pop("C1"), "schema must have column 'C1', it has label, I1"),
        (
            lambda d: d["schema"].update(C1="string"),
            "column 'C1' must have Arrow type int64, got string",
        ),
        (lambda d: d["numeric"][0].update(name="C1"), "must differ from each other"),
        (lambda d: d["categorical"][0].pop("cardinality"), "categorical[0].cardinality must be"),
        (lambda d: d.update(input=[]), "input must be dict"),
    ],
)
def test_wrong_field_is_named_with_its_value(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
):
    make_dataset(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(DatasetError) as caught:
        Dataset.open(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path / "_dataset.json") in str(caught.value)


def write(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / JSON).unlink(), rf"{JSON}: absent, so .* is no finished dataset"),
        *(
            (write(JSON, text), rf"{JSON}: must be a JSON document")
            for text in (b"", b"{", b'{"format": "embedps.dataset", \xff', b"[" * 100_000)
        ),
        (write(JSON, b"[]"), r"format must be 'embedps\.dataset', got 'list'"),
        (lambda root: (root / SHARD).unlink(), rf"{SHARD}: listed in"),
        (lambda root: os.truncate(root / SHARD, 7), r"must have \d{3,} bytes, has 7"),
        (
            lambda root: (root / SHARD).write_bytes(b"x" * (root / SHARD).stat().st_size),
            rf"{SHARD}.*must be a Parquet file",
        ),
    ],
)
def test_damaged_directory_is_named(tmp_path: Path, damage: Callable[[Path], object], message: str):
    make_dataset(tmp_path)
    damage(tmp_path)
    with pytest.raises(DatasetError, match=message):
        Dataset.open(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", [JSON, SHARD])
def test_what_is_no_regular_file_is_named_and_not_waited_for(tmp_path: Path, name: str, make: Any):
    make_dataset(tmp_path)
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with pytest.raises(DatasetError, match=rf"{re.escape(name)}: must be a regular file"):
        Dataset.open(tmp_path)


@pytest.mark.parametrize("sizes", [(0,), (0, 3, 4), (3, 0, 0, 4), (3, 4, 0)])
def test_empty_row_groups_are_opened(tmp_path: Path, sizes: tuple[int, ...]):
    path = make_dataset(tmp_path).paths("train")[0]
    rows = pq.read_table(path)
    with pq.ParquetWriter(path, rows.schema) as writer:
        for size in sizes:
            writer.write_table(rows.slice(0, size))
    count = sum(sizes)
    node = {"rows": count, "bytes": path.stat().st_size, "row_groups": sizes}
    edit(tmp_path, lambda d: d["splits"]["train"]["files"][0].update(node))
    edit(tmp_path, lambda d: d["splits"]["train"].update(rows=count, positives=0))
    assert Dataset.open(tmp_path).split("train").files[0].row_groups == sizes


@pytest.mark.parametrize(
    ("dropped", "group_rows", "message"),
    [
        (["C1"], 4, r"column 'C1' must have Arrow type int64, it has none"),
        ([], 5, r"row groups must be \(4, 4, 2\), the footer has \(5, 5\)"),
    ],
)
def test_shard_that_is_not_as_described_is_named(
    tmp_path: Path, dropped: list[str], group_rows: int, message: str
):
    path = make_dataset(tmp_path).paths("train")[0]
    pq.write_table(pq.read_table(path).drop_columns(dropped), path, row_group_size=group_rows)
    size = path.stat().st_size
    edit(tmp_path, lambda d: d["splits"]["train"]["files"][0].update(bytes=size))
    with pytest.raises(DatasetError, match=message):
        Dataset.open(tmp_path)


def test_footer_that_claims_more_rows_than_its_file_can_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_dataset(tmp_path)
    monkeypatch.setattr("embedps.data.dataset.MAX_ROWS_PER_BYTE", 1e-3)
    with pytest.raises(DatasetError, match="its footer claims 10 rows, which it cannot hold"):
        Dataset.open(tmp_path)


def test_verify_finds_one_flipped_bit(tmp_path: Path):
    dataset = make_dataset(tmp_path)
    dataset.verify()
    path = dataset.paths("train")[0]
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=r"train/shard.*checksum must be"):
        dataset.verify()


def test_save_replaces_at_once_and_leaves_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = make_dataset(tmp_path)
    before = (tmp_path / "_dataset.json").read_bytes()

    def fail(*_: object) -> None:
        raise OSError("no space left on the device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(EmbedpsError, match=r"cannot write .*no space left"):
        dataset.save()
    assert (tmp_path / "_dataset.json").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["_dataset.json", "eval", "train"]
