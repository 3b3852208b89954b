"""Shards have equal rows and hold, one after another, the blocks' rows in order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pipelines import shards
from pipelines.parse import SCHEMA
from pipelines.shards import (
    ShardTask,
    columns_for_dictionary,
    slices_of_shard,
    write_block,
    write_shard,
)
from pipelines.work_dir import BlockRecord, WorkDir


def make_batch(first: int, num_rows: int) -> pa.RecordBatch:
    """Rows first, first + 1, … in the first id column; every third is a click."""
    index = np.arange(first, first + num_rows)
    columns = [
        pa.array((index % 3 == 0) if field.name == "label" else index + i)
        for i, field in enumerate(SCHEMA)
    ]
    casted = [column.cast(field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(casted, schema=SCHEMA)


@given(
    rows=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=8),
    count=st.integers(1, 9),
    split=st.sampled_from(["train", "eval"]),
)
def test_slices_cover_every_row_once_in_equal_shards(
    rows: list[tuple[int, int]], count: int, split: str
):
    at = ["train", "eval"].index(split)
    blocks = [
        BlockRecord(file_name=f"{i}", rows=pair, positives=(0, 0)) for i, pair in enumerate(rows)
    ]
    seen: list[tuple[str, int]] = []
    sizes = []
    for index in range(count):
        slices = slices_of_shard(blocks, ShardTask(split=split, index=index, count=count))
        mine = [(s.block.file_name, row) for s in slices for row in range(s.start, s.stop)]
        sizes.append(len(mine))
        seen += mine
    assert seen == [(f"{i}", row) for i, pair in enumerate(rows) for row in range(pair[at])]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("count", [1, 3, 7])
def test_shards_hold_the_blocks_rows_in_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
):
    monkeypatch.setattr(shards, "ROW_GROUP_ROWS", 100)
    work = WorkDir(path=tmp_path / "work")
    work.path.mkdir()
    blocks = []
    first = 0
    for i, num_rows in enumerate((350, 1, 99, 230)):
        path = work.block(0, i)
        batch = make_batch(first, num_rows)
        held_out = np.arange(first, first + num_rows) % 10 == 0
        write_block(path, batch, held_out)
        num_eval = int(held_out.sum())
        blocks.append(
            BlockRecord(file_name=path.name, rows=(num_rows - num_eval, num_eval), positives=(0, 0))
        )
        first += num_rows
    for split, wanted in (
        ("train", [i for i in range(first) if i % 10]),
        ("eval", list(range(0, first, 10))),
    ):
        tables = []
        for index in range(count):
            record = write_shard(
                tmp_path, work, blocks, ShardTask(split=split, index=index, count=count)
            )
            path = tmp_path / record.file.path
            parquet = pq.ParquetFile(path)
            table = parquet.read()
            assert record.file.rows == table.num_rows == sum(record.file.row_groups)
            assert record.file.bytes == path.stat().st_size
            assert record.file.xxh3_64 == xxhash.xxh3_64_hexdigest(path.read_bytes())
            assert record.positives == sum(table["label"].to_pylist())
            groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
            assert list(record.file.row_groups) == groups
            assert all(rows == 100 for rows in groups[:-1])
            assert all(field.max_definition_level == 0 for field in parquet.schema)
            tables.append(table)
        whole = pa.concat_tables(tables)
        ids_at = SCHEMA.get_field_index("C1")
        assert whole["C1"].to_pylist() == [i + ids_at for i in wanted]
        assert whole["label"].to_pylist() == [float(i % 3 == 0) for i in wanted]
    assert not list(tmp_path.rglob(".*.tmp"))


def test_dictionary_is_for_columns_of_few_values():
    table = pa.table({"few": [i % 25 for i in range(100)], "many": [i % 26 for i in range(100)]})
    assert columns_for_dictionary(table) == ["few"]


def test_failed_shard_leaves_nothing(tmp_path: Path):
    work = WorkDir(path=tmp_path / "work")
    blocks = [BlockRecord(file_name="absent.arrow", rows=(5, 0), positives=(0, 0))]
    with pytest.raises(FileNotFoundError):
        write_shard(tmp_path, work, blocks, ShardTask(split="train", index=0, count=1))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
