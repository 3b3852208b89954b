from benchmarks import eviction_pause


def test_one_table_grows_and_the_other_evicts():
    results = eviction_pause.measure(rows=40_000, rounds=1)
    assert results["growing"]["rows"] == 32_768  # whole steps
    assert results["growing"]["evicted"] == 0
    assert results["evicting"]["rows"] <= 20_000
    assert results["evicting"]["rows"] + results["evicting"]["evicted"] == 32_768
