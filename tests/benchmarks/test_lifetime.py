import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from benchmarks import layout, lifetime
from benchmarks.lifetime_round import TASKS, hash_records


def run_here(task, asked):
    return TASKS[task](asked)


@pytest.mark.slow
def test_runs_take_turns_and_go_on_with_two_shards(tmp_path):
    stream = lifetime.Stream(model="fm", events=40_000, rounds=2, batch_size=256, unit_rows=1024)
    results = lifetime.measure(stream, tmp_path, order="least_frequent", task=run_here)
    runs = results["runs"]
    assert runs["all"]["rows"] == results["stream"]["items"]
    assert runs["all"]["evicted"] == {"age": 0, "norm": 0, "limit": 0, "hand": 0}
    for run in runs.values():
        assert run["examples"] == 40_000
        assert run["repeated_units"] == 0
        assert run["verified_checkpoints"] == 2
        assert len(run["auc_by_round"]) == 2
    assert runs["ttl"]["rows"] < runs["all"]["rows"]
    assert runs["ttl"]["refused"] > 0
    # Ids that come back are displaced more than once.
    assert runs["limit"]["evicted"]["limit"] >= results["stream"]["items"] - runs["limit"]["rows"]
    for copy in results["two_shards"].values():
        assert copy["same_rows"]
        assert copy["rounds"] == copy["verified_checkpoints"] == 1
    shown = layout.markdown(lifetime.layout({"results": results}))
    assert all(f"| {name} | " in shown for name in runs)
    lifetime.plot(results, stream.unit_rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_a_digest_is_of_all_bits_and_not_of_the_order():
    ids = np.arange(5, dtype=np.int64)
    rows = np.arange(10, dtype=np.float32)

    def digest(order, rows=rows):
        embedding = pa.FixedSizeListArray.from_arrays(rows.reshape(5, 2)[order].ravel(), 2)
        names = pa.array([["t", "u"][i % 2] for i in order]).dictionary_encode()
        columns = {"id": pa.array(ids[order]), "table": names, "embedding": embedding}
        return hash_records(pa.record_batch(columns))

    in_order = np.arange(5)
    changed = rows.copy()
    changed[3] = np.nextafter(changed[3], np.float32(9))
    assert digest(in_order) == digest(in_order[::-1])
    assert digest(in_order) != digest(in_order, changed)


def test_a_round_ends_where_its_share_of_the_units_does():
    stream = lifetime.Stream(model="fm", events=1000, rounds=3, batch_size=10, unit_rows=100)
    assert [stream.last_unit(k) for k in range(3)] == [3, 6, 10]
    assert dataclasses.replace(stream, events=1001).units == 11
