"""Frequent ids are those of all rows; their counts are merged in bounded ranges."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from embedps.features.table_schema import Table
from embedps.pipelines.ingestion import column_statistics
from embedps.pipelines.ingestion.column_statistics import ColumnStatistics
from embedps.pipelines.ingestion.work_dir import WorkDir
from tests.pipelines.builders import make_rows, make_table


def test_frequent_ids_are_exact_over_pieces_and_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(column_statistics, "_PIECE_IDS", 100)
    monkeypatch.setattr(column_statistics, "_MERGED_IDS", 64)
    table = Table.parse(
        {
            "column": [
                {"name": "label", "as": "label"},
                {"name": "id", "as": "categorical", "type": "integer"},
            ]
        }
        | {"feature": [{"name": "f", "from": "id", "transform": [{"min_count": 3}]}]}
    )
    rng = np.random.default_rng(0)
    ids = np.concatenate([rng.zipf(1.3, 3000), [-5, -5, -5, (1 << 62)] * 3])
    base = make_rows(make_table(False), 0, [0] * len(ids)).select(["label", "id"])
    rows = base.set_column(1, base.schema.field(1), pa.array(ids.astype(np.int64)))
    work = WorkDir(path=tmp_path)
    paths = []
    for index, part in enumerate((rows.slice(0, 1200), rows.slice(1200))):
        gathered = ColumnStatistics(table, work, index)
        for start in range(0, part.num_rows, 150):
            gathered.add(part.slice(start, 150))
        pieces = gathered.finish()["f"]
        assert pieces > 1
        paths += [work.counts(index, "f", number) for number in range(pieces)]
    counts = Counter(ids.tolist())
    wanted = sorted(i for i, count in counts.items() if count >= 3)
    assert column_statistics._frequent_ids(paths, 3).tolist() == wanted
