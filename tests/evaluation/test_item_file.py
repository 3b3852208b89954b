"""Items' vectors go to a file and come back; what is no such file is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedps.errors import DatasetError, UsageError
from embedps.evaluation.item_file import read_items, write_items
from tools.fuzz_seeds import SEEDS


def test_items_come_back_as_they_were(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    batches = [
        (rng.normal(size=(n, 3)).astype(np.float32), np.arange(n) + first)
        for n, first in ((5, 0), (1, 5), (70_000, 6))
    ]
    assert write_items(tmp_path / "items.parquet", "movie", batches) == 70_006
    ids, vectors = read_items(tmp_path / "items.parquet")
    np.testing.assert_array_equal(ids, np.arange(70_006))
    np.testing.assert_array_equal(
        vectors.numpy(), np.concatenate([vectors for vectors, _ in batches])
    )
    assert pq.read_schema(tmp_path / "items.parquet").names == ["movie", "vector"]


def test_nothing_is_left_of_a_file_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "items.parquet"
    with pytest.raises(UsageError, match="no items to export"):
        write_items(path, "item", [])

    def broken():
        yield np.zeros((2, 3), np.float32), np.arange(2)
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        write_items(path, "item", broken())
    assert list(tmp_path.iterdir()) == []
    batches = [(np.zeros((1, 2), np.float32), np.arange(1))]
    with pytest.raises(UsageError, match="cannot be written"):
        write_items(tmp_path / "absent" / "items.parquet", "item", batches)


def test_other_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"absent.parquet must be a file of export_items"):
        read_items(tmp_path / "absent.parquet")
    pq.write_table(pa.table({"item": [1], "score": [0.5]}), tmp_path / "other.parquet")
    with pytest.raises(DatasetError, match="must be a file of export_items"):
        read_items(tmp_path / "other.parquet")
    pq.write_table(pa.table({"item": [1], "vector": [[0.5]]}), tmp_path / "lists.parquet")
    with pytest.raises(DatasetError, match="must be a file of export_items"):
        read_items(tmp_path / "lists.parquet")
    claim = (SEEDS / "items" / "found-count.parquet").read_bytes()
    (tmp_path / "claim.parquet").write_bytes(claim)
    with pytest.raises(DatasetError, match="it claims 3 items but has 0"):
        read_items(tmp_path / "claim.parquet")
