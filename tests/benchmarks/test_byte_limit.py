import itertools

import numpy as np
import pytest

from benchmarks import byte_limit
from embedps import kernels
from embedps.tables import SizeLimit


def test_streams_have_distinct_ids_in_each_step():
    for stream in byte_limit.ALL_STREAMS:
        for ids in itertools.islice(byte_limit.batches(stream, 50_000), 4):
            assert len(np.unique(ids)) == len(ids) > 1000


def test_two_sets_come_in_turn():
    steps = itertools.islice(byte_limit.batches("alternating", 16384), 4)
    sets = [set(ids.tolist()) for ids in steps]
    assert sets[0] == sets[2]
    assert sets[1] == sets[3]
    assert not sets[0] & sets[1]


@pytest.mark.parametrize("call_ids", [16384, 512])
def test_a_step_of_many_calls_is_one_step(call_ids):
    table = byte_limit.EvictingTable(f"calls-{call_ids}", [SizeLimit(max_rows=40_000)], 8)
    for ids in itertools.islice(byte_limit.batches("new", 40_000), 5):
        table.step(ids, call_ids)
    counts = table.counts()
    assert counts["rows"] + counts["evicted"] == 5 * 16384
    assert counts["rows"] > 16384
    table.evict_older_half(1)  # all rows but those of the last step
    assert table.counts()["rows"] == 16384
    kernels.load().embedps_clear(table.store)


@pytest.mark.multiprocess
def test_a_case_fills_its_tables_and_tells_the_peak():
    case = byte_limit.in_a_process("new", 4 << 20, 16, 3, num_tables=2)
    assert case["evicted"] > case["rows"] > 20_000
    assert case["ratio"] == round(case["peak_bytes"] / (4 << 20), 4)
    assert case["counted_bytes"] <= 4 << 20


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("stream", "num_tables", "turnovers"),
    [("new", 1, 4), ("sweeps", 2, 4), ("counters", 2, 6), ("evicted_rarely", 1, 4)],
)
def test_resident_memory_stays_within_3_percent_of_a_limit(stream, num_tables, turnovers):
    case = byte_limit.in_a_process(stream, 32 << 20, 64, turnovers, num_tables)
    assert case["evicted"] > case["rows"] > 50_000
    assert case["ratio"] <= 1.03
