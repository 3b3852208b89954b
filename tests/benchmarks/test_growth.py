import numpy as np

from benchmarks import growth
from embedps.checkpoint.format.row_hashes import row_hashes


def test_ids_are_distinct_and_spread():
    ids = growth.ids_of(np.arange(100_000))
    assert len(np.unique(ids)) == 100_000
    assert (ids < 0).sum() > 40_000  # all 64 bits are used


def test_ids_at_equal_misses_are_rows_of_one_stretch_and_one_part_of_the_index():
    table = growth.OneTable("parts")
    while table.rows < 64_000:
        table.grow(8_000)
    ids = table.some_ids_of_index_part(np.random.default_rng(1), 500, among=9_000)
    assert len(np.unique(ids)) == 500
    rows = np.flatnonzero(np.isin(growth.ids_of(np.arange(64_000)), ids))
    assert len(rows) == 500
    assert np.ptp(rows) < 9_000
    parts = row_hashes("parts", ids) >> np.uint64(growth._INDEX_PART_BIT)
    assert len(np.unique(parts % 4)) == 1  # 64,000 of 9,000 are 7: parts of a quarter


def test_a_table_is_measured_while_it_grows(monkeypatch):
    monkeypatch.setattr(growth, "SMALL_ROWS", 20_000)
    monkeypatch.setattr(growth, "_EVICT_BYTES", 1 << 20)
    monkeypatch.setattr(growth, "_ROWS_BETWEEN_CUTS", 16_384)
    results = growth.measure(rows=40_000, rounds=2)
    assert results["rows"] == 40_000
    assert results["needed_bytes"] == 40_000 * (16 * 4 + 4 + 8)
    assert results["memory_ratio"] == round(results["memory_bytes"] / results["needed_bytes"], 4)
    assert results["memory_ratio"] > 1  # it cannot hold them in less
    assert results["insert_lookups"]["count"] == -(-40_000 // 8192)
    for name in (
        "insert_lookups",
        "lookups_while_growing",
        "lookups_of_the_other_table",
        "first_touches_of_pages",
    ):
        ms = results[name]
        assert 0 < ms["median_ms"] <= ms["p99_ms"] <= ms["p999_ms"] <= ms["max_ms"]
    assert len(results["memory_ratio_while_growing"]) == 2
    kinds = ["small", "anywhere", "stretch", "equal_misses"]
    assert list(results["cold_micros_per_id"]) == kinds
