"""The checkpoint benchmarks, small: what their figures are made of."""

import json

import numpy as np
import pytest

from benchmarks import checkpoint_cost
from benchmarks.checkpoint_encodings import _auc, _planted
from benchmarks.workload import W1


def test_cost_counts_the_rows_touched_and_not_the_table(tmp_path):
    output = tmp_path / "cost.json"
    sizes = ["--rows=2000,8000", "--touched=0.1", "--touched-rows=500"]
    where = ["--folder", str(tmp_path), "--output", str(output)]
    assert checkpoint_cost.BENCHMARK.run([*sizes, "--repeats=1", *where]) == 0
    found = json.loads(output.read_text())
    small, large = found["results"]
    assert [r["rows"] for r in (small, large)] == [2000, 8000]
    assert [d["touched_rows"] for d in small["deltas"]] == [200, 500]
    assert [d["touched_rows"] for d in large["deltas"]] == [500, 800]
    # The same rows touched, the same bytes, of whichever table.
    assert small["deltas"][1]["bytes"] == pytest.approx(large["deltas"][0]["bytes"], rel=0.02)
    assert large["base"]["bytes"] > 3 * small["base"]["bytes"]
    for each in (small["base"], *large["deltas"]):
        assert each["write_ratio"] > 0
        assert each["load_ratio"] >= each["load_ratio_to_read"] > 0
    assert found["environment"]["commit"]
    assert list(tmp_path.iterdir()) == [output]  # what was measured is gone


def test_auc_is_the_share_of_pairs_in_order():
    rng = np.random.default_rng(0)
    scores, labels = rng.random(300), (rng.random(300) < 0.3).astype(np.float32)
    pairs = scores[labels == 1][:, None] > scores[labels == 0]
    assert _auc(scores, labels) == pytest.approx(pairs.mean())


def test_planted_labels_follow_from_the_ids():
    batches, best = _planted(W1, 20_000, seed=3)
    again, _ = _planted(W1, 20_000, seed=3)
    np.testing.assert_array_equal(batches.labels, again.labels)
    assert 0.7 < best < 0.95
    assert 0.1 < batches.labels.mean() < 0.5
