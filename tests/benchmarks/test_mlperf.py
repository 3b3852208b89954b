"""MLPerf's model, scaled: the examples, and that ours learns what is planted in them."""

import itertools

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import mlperf
from benchmarks.model_folds import auc

SMALL = {"dim": 8, "bottom_mlp": [16, 8], "deep_mlp": [32], "cross_layers": 1, "cross_rank": 8}
CARDINALITIES = [min(rows, 200) for rows in mlperf.ROWS]


@pytest.mark.multiprocess
def test_ours_learns_what_is_planted_in_the_lists_of_both(tmp_path):
    rng = np.random.default_rng(1)
    for split, rows in (("train", 4096), ("eval", 1024)):
        examples = mlperf.draw(rng, rows, CARDINALITIES)
        mlperf.write(tmp_path, split, examples)
    arrays = np.load(tmp_path / "eval.npz")
    table = pq.read_table(tmp_path / "eval.parquet")
    firsts = np.cumsum([0, *mlperf.HOT])
    for i, (first, last) in enumerate(itertools.pairwise(firsts)):
        lists = np.array(table[f"C{i + 1}"].to_pylist())
        np.testing.assert_array_equal(lists, arrays["ids"][:, first:last])
        assert lists.max() < CARDINALITIES[i]
    settings = SMALL | {
        "seed": 0,
        "batch": 128,
        "rows": 4096,
        "eval_rows": 1024,
        "warm_up_batches": 4,
        "rate": 0.1,
    }
    found = mlperf.ours(str(tmp_path), settings)
    assert found["rate"] > 0
    assert 0.6 < found["auc"] < auc(examples["label"], examples["chance"])


def test_the_workload_is_mlperfs():
    assert len(mlperf.HOT) == len(mlperf.ROWS) == 26
    assert sum(mlperf.HOT) == 214
    assert sum(mlperf.ROWS) == 204_184_588
