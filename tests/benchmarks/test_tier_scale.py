"""The examples of the benchmark of tables larger than memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.tier_scale import TABLES, by_zipf, labels_of, new_ids, write_dataset
from embedps.data.dataset import Dataset

ROWS = 200_000


def test_the_first_examples_have_each_id_once() -> None:
    ids = np.concatenate([part.ids for part in new_ids(ROWS)], axis=1)
    assert ids.shape == (TABLES, ROWS)
    for of_table in ids:
        assert np.array_equal(np.sort(of_table), np.arange(ROWS))


def test_labels_follow_from_the_ids() -> None:
    (part,) = by_zipf(ROWS, 100_000, seed=1)
    again = labels_of(part.ids, 2)  # drawn anew by the same chances
    assert np.array_equal(part.labels, labels_of(part.ids, 1))
    # Chances that do not depend on the ids would agree by p^2 + (1 - p)^2.
    p = part.labels.mean()
    assert np.mean(again == part.labels) > p**2 + (1 - p) ** 2 + 0.01


def test_the_dataset_has_new_ids_before_the_others(tmp_path: Path) -> None:
    write_dataset(tmp_path, 1000, 300, 200)
    train = Dataset.open(tmp_path).splits["train"]
    assert [file.rows for file in train.files] == [1000, 300]
    first, later = (pq.read_table(tmp_path / file.path) for file in train.files)
    assert first["C7"].to_pylist() == list(range(1000))
    assert min(later["C7"].to_pylist()) >= 0
    assert max(later["C7"].to_pylist()) < 1000
