"""Statistics merged from any parts are those of all rows; counts are merged in bounded ranges."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.ingestion import column_statistics
from pipelines.ingestion.column_statistics import ColumnStatistics, Moments
from pipelines.ingestion.table_schema import Table
from pipelines.ingestion.work_dir import WorkDir
from pipelines.splitmix import mix, unmix
from tests.pipelines.builders import make_rows, make_table


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=20))
def test_unmix_is_the_inverse_of_mix(values: list[int]):
    h = np.array(values, np.uint64)
    np.testing.assert_array_equal(unmix(mix(h.copy())), h)


@given(
    parts=st.lists(
        st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), max_size=9), max_size=6
    )
)
def test_moments_of_parts_add_up(parts: list[list[float]]):
    moments = sum((Moments.of(np.array(part, np.float64)) for part in parts), Moments())
    values = np.array([v for part in parts for v in part if v == v])
    assert moments.count == len(values)
    if len(values):
        np.testing.assert_allclose(moments.mean, values.mean(), rtol=1e-9, atol=1e-6)
        np.testing.assert_allclose(moments.std, values.std(), rtol=1e-6, atol=1e-3)


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
    assert column_statistics._frequent(paths, 3).tolist() == wanted
