import dataclasses
import json

import numpy as np
import pytest

from benchmarks import report, scaling
from benchmarks.scaling import Point, Shard
from embedps.planning.step_traffic import MODEL, place_variables
from embedps.planning.sync_modes import SPEEDS, calls_of


def counted(num_ps, ids, dim, sizes, unit_steps=16, **how):
    """What the design says crosses the wire: ids, rows, gradients, and the network both ways."""
    shards = []
    for server in range(num_ps):
        own = sizes[server::num_ps]
        of = ids / num_ps
        shards.append(
            Shard(
                ids=of,
                dim=dim,
                floats=sum(own),
                unit_steps=unit_steps,
                bytes_in=2000 + 8 * of + 4 * of * dim + 4 * sum(own) + 6000 / unit_steps,
                bytes_out=3000 + 4 * of * dim + 4 * sum(own) + 5000 / unit_steps,
                calls=3 + 20 / unit_steps,
            )
        )
    point = dataclasses.asdict(Point(num_ps=num_ps, dim=dim, unit_steps=unit_steps, **how))
    return {"point": point, "shards": [dataclasses.asdict(s) for s in shards]}


def test_the_model_finds_what_crosses_and_predicts_other_shards():
    sizes = [6656, 512, 131072, 256, 1024, 16]
    few = [
        counted(n, ids, dim, sizes, unit_steps)
        for n in (1, 2)
        for ids in (900, 4000)
        for dim in (16, 64)
        for unit_steps in (4, 16)
    ]
    in_step = counted(2, 900, 16, sizes, 8, sync="full", num_workers=2)
    many = [in_step, *(counted(n, 7000, 32, sizes) for n in (4, 8))]
    model = scaling.fit([*few, *many])
    np.testing.assert_allclose(model["bytes_in"], [2000, 8, 4, 4, 6000], rtol=1e-6)
    np.testing.assert_allclose(model["bytes_out"], [3000, 4, 4, 5000], rtol=1e-6)
    np.testing.assert_allclose(model["calls"], [3, 20], rtol=1e-6)
    for row in scaling.errors(many, model):
        assert not row["fitted"]
        for what in ("bytes_in", "bytes_out", "calls"):
            assert abs(row[what]["worst_shard_error"]) < 1e-6


def test_distinct_ids_are_counted_by_feature_and_batch():
    ids = np.array([[1, 1, 2, 3], [1, 1, 1, 1]])
    assert scaling.distinct_ids(ids, 2) == pytest.approx(((1 + 1) + (2 + 1)) / 2)


def test_a_full_link_is_of_the_fullest_server():
    point = Point(num_ps=16, tables=2, batch=64)
    sizes = scaling.network_sizes(point.workload())
    # 13-512-256-64-16 and, of 3 vectors' pairs and the bottom's 16, 19-512-256-1.
    widths = [(13, 512), (512, 256), (256, 64), (64, 16), (19, 512), (512, 256), (256, 1)]
    assert sizes == [n for a, b in widths for n in (a * b, b)]
    model = {"bytes_in": [0, 0, 0, 4.0, 0], "bytes_out": [0, 0, 4.0, 0], "calls": [1.0, 0.0]}
    full = scaling.project(model, point, rates=(1000.0,))
    most = max(sum(sizes[i] for i in of) for of in place_variables(sizes, 16))
    limit = 25e9 / 8 / (64 * 4 * most) * 64
    assert full["examples_per_sec_and_worker_when_full"] == pytest.approx(limit, abs=1)
    assert full["link_use_at"]["1000"] == pytest.approx(1000 / limit, abs=1e-3)


def test_the_products_model_is_what_was_measured_in_each_mode():
    """`embedps plan` predicts every counted step of results/scaling.json within 10%."""
    result = json.loads((report.RESULTS / "scaling.json").read_text())
    assert {Point(**counts["point"]) for counts in result["counts"]} == {*scaling.POINTS}
    assert {point.sync for point in scaling.POINTS} == set(SPEEDS)
    for row in scaling.errors(result["counts"], MODEL):
        for what in ("bytes_in", "bytes_out", "calls"):
            assert row[what]["worst_shard_error"] < 0.10, row
        together = 1 if row["sync"] == "none" else row["num_workers"]
        calls = calls_of(row["sync"], row["num_workers"], row["unit_steps"] * together)
        assert calls == pytest.approx(row["calls"]["predicted"], abs=0.05)
