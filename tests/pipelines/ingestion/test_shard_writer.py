"""Shards have equal rows and hold, one after another, the runs' rows in order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.features.table_schema import Table
from embedps.features.transforms import Transforms
from embedps.pipelines.ingestion import shard_writer, sorted_runs
from embedps.pipelines.ingestion.shard_writer import ShardTask, columns_for_dictionary, write_shard
from embedps.pipelines.ingestion.sorted_runs import (
    SortedRunReader,
    SortedRunRecord,
    SortedRunWriter,
)
from embedps.pipelines.ingestion.work_dir import SPLITS, WorkDir
from tests.pipelines.builders import make_rows, make_table


def write_runs(
    work: WorkDir, table: Table, files: list[list[list[int]]], held_out_every: int = 10
) -> list[SortedRunRecord]:
    """Writes files of blocks of times; returns their runs in order. Ids count from 0."""
    work.path.mkdir(exist_ok=True)
    first = 0
    records = []
    for index, blocks in enumerate(files):
        writer = SortedRunWriter(work, index, table, seed=5)
        for times in blocks:
            rows = make_rows(table, first, times)
            writer.add(rows, np.arange(first, first + len(times)) % held_out_every == 0)
            first += len(times)
        writer.flush()
        records += writer.records
    return records


@settings(max_examples=30, deadline=None)
@given(
    files=st.lists(st.lists(st.lists(st.integers(-3, 3), max_size=8), max_size=4), max_size=4),
    count=st.integers(1, 5),
)
def test_ranges_cover_every_row_once_sorted_by_time_then_input(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[list[int]]], count: int
):
    work = WorkDir(path=tmp_path_factory.mktemp("work"))
    table = make_table(timed=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "RUN_ROWS", 5)
        records = write_runs(work, table, files, held_out_every=4)
    times = [time for blocks in files for block in blocks for time in block]
    for split in range(2):
        wanted = sorted((time, i) for i, time in enumerate(times) if (i % 4 == 0) == (split == 1))
        rows = SortedRunReader(work, records, split)
        assert rows.num_rows == len(wanted)
        seen: list[tuple[int, int]] = []
        sizes = []
        for i in range(count):
            first, last = ShardTask(split=SPLITS[split], index=i, count=count).ranks(len(wanted))
            sizes.append(last - first)
            if first < last:
                for batch in rows.ranges([first, last]):
                    assert batch.num_rows == last - first
                    ids = batch.column("id").to_pylist()
                    seen += zip(batch.column("time").to_pylist(), ids, strict=True)
                    assert batch.column("tags").to_pylist() == [[i] * (i % 3) for i in ids]
        assert seen == wanted
        assert max(sizes) - min(sizes) <= 1


def test_runs_without_a_time_are_shuffled_alike_each_time(tmp_path: Path):
    table = make_table(timed=False)
    files = [[[0] * 700, [0] * 300], [[0] * 1000]]
    orders = []
    for name in ("a", "b"):
        work = WorkDir(path=tmp_path / name)
        rows = SortedRunReader(work, write_runs(work, table, files), 0)
        (batch,) = rows.ranges([0, rows.num_rows])
        orders.append(batch.column("id").to_numpy())
    np.testing.assert_array_equal(orders[0], orders[1])
    assert sorted(orders[0]) == [i for i in range(2000) if i % 10]
    # Rows of both files are anywhere: within five standard deviations of the middle on average.
    assert abs((np.flatnonzero(orders[0] < 1000).mean() / 900) - 1) < 5 * 2 / np.sqrt(12 * 900)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_shards_hold_the_sorted_rows_in_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
):
    monkeypatch.setattr(sorted_runs, "RUN_ROWS", 150)
    monkeypatch.setattr(shard_writer, "RUN_ROWS", 250)
    work = WorkDir(path=tmp_path / "work")
    table = make_table(timed=True)
    times = list(range(680, 0, -1))
    records = write_runs(work, table, [[times[:350]], [times[350:351], times[351:]]])
    transforms = Transforms(table=table)
    for split in SPLITS:
        wanted = [i for i in reversed(range(680)) if (i % 10 == 0) == (split == "eval")]
        tables = []
        for index in range(count):
            task = ShardTask(split=split, index=index, count=count)
            record = write_shard(tmp_path, work, records, transforms, task, 100)
            path = tmp_path / record.file.path
            parquet = pq.ParquetFile(path)
            part = parquet.read()
            assert record.file.rows == part.num_rows == sum(record.file.row_groups)
            assert record.file.bytes == path.stat().st_size
            assert record.file.xxh3_64 == xxhash.xxh3_64_hexdigest(path.read_bytes())
            assert record.positives == sum(part["label"].to_pylist())
            assert record.missing == {"id": 0, "tags": part["tags"].to_pylist().count([])}
            groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
            assert list(record.file.row_groups) == groups
            assert all(rows == 100 for rows in groups[:-1])
            statistics = parquet.metadata.row_group(0).column(1).statistics
            ids = part["id"].to_pylist()[:100]
            assert (statistics.min, statistics.max) == (min(ids), max(ids))
            assert parquet.metadata.row_group(0).column(1).compression == "ZSTD"
            assert all(not field.nullable for field in parquet.schema_arrow)
            tables.append(part)
        whole = pa.concat_tables(tables)
        assert whole["id"].to_pylist() == wanted
        assert whole["time"].to_pylist() == [times[i] for i in wanted]
        assert whole["label"].to_pylist() == [float(i % 3 == 0) for i in wanted]
        assert whole["weight"].to_pylist() == [float(i) for i in wanted]
    assert not list(tmp_path.rglob(".*.tmp"))


def test_dictionary_is_for_columns_of_few_values():
    batch = pa.record_batch(
        {"few": [i % 25 for i in range(100)], "many": [i % 26 for i in range(100)]}
    )
    assert columns_for_dictionary(batch) == ["few"]


def test_failed_shard_leaves_nothing(tmp_path: Path):
    work = WorkDir(path=tmp_path / "work")
    records = [SortedRunRecord(file_name="absent.arrow", rows=(5, 0), positives=(0, 0))]
    task = ShardTask(split="train", index=0, count=1)
    with pytest.raises(FileNotFoundError):
        write_shard(tmp_path, work, records, Transforms(table=make_table(True)), task, 100)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
