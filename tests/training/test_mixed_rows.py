"""Rows that are mixed within units: the same rows in each, in another order."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embedps
from embedps.data.dataset import Dataset, describe_file
from embedps.errors import CheckpointError, DatasetError
from embedps.scheduling.division import LedgerOptions, split_into_ranges
from embedps.training import mixed_rows
from embedps.training.mixed_rows import are_single, write_mixed
from tests.builders import write_dataset

OPTIONS = LedgerOptions(batch_rows=50, unit_rows=200, seed=3)


@pytest.mark.parametrize("row_group_rows", [70, 200, 500])
def test_units_have_the_same_rows_in_another_order(tmp_path: Path, row_group_rows: int) -> None:
    dataset = write_dataset(
        tmp_path / "set", train=(730, 410), row_group_rows=row_group_rows, whole=True
    )
    mixed = write_mixed(dataset, tmp_path / "mixed", OPTIONS)
    again = write_mixed(dataset, tmp_path / "again", OPTIONS)
    assert set(mixed.splits) == {"train"}
    for file, other in zip(dataset.split("train").files, mixed.split("train").files, strict=True):
        assert (file.path, file.rows, file.row_groups) == (other.path, other.rows, other.row_groups)
        before = pq.read_table(dataset.absolute_path(file))
        after = pq.read_table(mixed.absolute_path(other))
        assert before.schema.equals(after.schema)
        assert (again.directory / other.path).read_bytes() == mixed.absolute_path(
            other
        ).read_bytes()
        path = str(dataset.absolute_path(file))
        ranges = [r for r in split_into_ranges(dataset, OPTIONS) if r[0] == path]
        assert sum(rows for *_, rows in ranges) == file.rows
        for _, first, rows in ranges:
            was, now = before.slice(first, rows), after.slice(first, rows)
            order = np.argsort(now["row"].to_numpy())
            assert not np.array_equal(order, np.arange(rows))
            wanted = was.take(np.argsort(was["row"].to_numpy()))
            assert str(now.take(order).to_pylist()) == str(wanted.to_pylist())  # with NaN


def by_user(directory: Path, **split: object) -> Dataset:
    """Rows in the order of their users."""
    rows = pa.table({"click": [0, 1] * 600, "user": np.repeat(np.arange(60), 20)})
    columns = [
        {"name": "click", "as": "label"},
        {"name": "user", "as": "categorical", "type": "integer"},
    ]
    schema = {"format": "parquet", "column": columns}
    dataset = embedps.Dataset.from_arrow(rows, directory, schema, num_shards=1, **split)
    path = dataset.paths("train")[0]
    pq.write_table(pq.read_table(path).sort_by("user"), path)
    files = (describe_file(directory, path),)
    train = dataclasses.replace(dataset.split("train"), files=files)
    return dataclasses.replace(dataset, splits={**dataset.splits, "train": train})


def test_inner_rows_of_mixed_rows_are_of_users_that_are_trained_on(tmp_path: Path) -> None:
    dataset = by_user(tmp_path / "set", eval_fraction=0.2)
    assert are_single(dataset)
    inner = dataclasses.replace(OPTIONS, inner_share=0.2, inner=True)
    rest = dataclasses.replace(OPTIONS, inner_share=0.2)

    def new_users(of: Dataset) -> float:
        def users(options: LedgerOptions) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            parts = [
                pq.read_table(path)["user"].to_numpy()[first : first + rows]
                for path, first, rows in split_into_ranges(of, options)
            ]
            found: np.ndarray[tuple[int], np.dtype[np.int64]] = np.concatenate(parts)
            return found

        return float(np.mean(~np.isin(users(inner), users(rest))))

    assert new_users(dataset) > 0.5
    assert new_users(write_mixed(dataset, tmp_path / "mixed", OPTIONS)) < 0.05


def test_only_small_sets_whose_eval_split_is_of_single_rows_are_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = by_user(tmp_path / "single", eval_fraction=0.2)
    assert not are_single(by_user(tmp_path / "users", eval_fraction=0.2, split_key=("user",)))
    assert not are_single(write_dataset(tmp_path / "unknown"))
    monkeypatch.setattr(mixed_rows, "_MOST_BYTES", 10)
    assert not are_single(single)


def test_what_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    dataset = by_user(tmp_path / "set", eval_fraction=0.2)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file/.*cannot be written"):
        write_mixed(dataset, tmp_path / "file" / "in", OPTIONS)
    path = dataset.paths("train")[0]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DatasetError, match=path.name):
        write_mixed(dataset, tmp_path / "mixed", OPTIONS)
