import numpy as np

from benchmarks import growth


def test_ids_are_distinct_and_spread():
    ids = growth.ids_of(np.arange(100_000))
    assert len(np.unique(ids)) == 100_000
    assert (ids < 0).sum() > 40_000  # all 64 bits are used


def test_a_table_is_measured_while_it_grows(monkeypatch):
    monkeypatch.setattr(growth, "SMALL_ROWS", 20_000)
    monkeypatch.setattr(growth, "_EVICT_BYTES", 1 << 20)
    monkeypatch.setattr(growth, "_ROWS_BETWEEN_CUTS", 16_384)
    results = growth.measure(rows=40_000, rounds=2)
    assert results["rows"] == 40_000
    assert results["need_bytes"] == 40_000 * (16 * 4 + 4 + 8)
    assert results["memory_ratio"] == round(results["memory_bytes"] / results["need_bytes"], 4)
    assert results["memory_ratio"] > 1  # it cannot hold them in less
    assert results["insert_lookups"]["lookups"] == -(-40_000 // 8192)
    for name in ("insert_lookups", "lookups_while_growing", "lookups_of_the_other_table"):
        ms = results[name]
        assert 0 < ms["median_ms"] <= ms["p99_ms"] <= ms["p999_ms"] <= ms["max_ms"]
    assert len(results["memory_ratio_while_growing"]) == 2
    assert list(results["cold_micros_an_id"]) == ["small", "anywhere", "equal_misses"]
