import dataclasses
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import workload
from benchmarks.peers import protocol
from embedps.errors import UsageError
from embedps.pipelines.criteo import main as criteo
from embedps.pipelines.generate import main as generate
from tests.benchmarks.builders import TINY


def test_batches_are_zipf_over_the_whole_cardinality():
    batches = workload.make_batches(TINY, 20_000)
    assert batches.ids.shape == (2, 20_000)
    assert set(batches.ids[0]) == {0, 1, 2}
    assert batches.ids[1].min() >= 0
    assert batches.ids[1].max() < 1000
    # Rank 1 of the continuous law: the integral of x^-1.05 over [1, 2) to that over [1, N + 1).
    power = 1 - workload.ZIPF_EXPONENT
    first = (2**power - 1) / (1001**power - 1)
    most = np.bincount(batches.ids[1]).max() / 20_000
    assert most == pytest.approx(first, abs=4 * (first * (1 - first) / 20_000) ** 0.5)


def test_everybody_reads_the_same_examples():
    batches = workload.make_batches(TINY, 256)
    with workload.files(TINY, batches) as folder:
        work = protocol.read_work(folder, {"num_ps": 2})
        parquet = pq.read_table(folder / "batches.parquet")
    assert work.settings == {"num_ps": 2}
    assert (work.dim, work.num_interactions) == (4, 3 + 4)
    for numerics, ids, labels in work.batches(100):
        assert numerics.shape == (100, 13)
        assert ids.shape == (2, 100)
        assert labels.shape == (100,)
    assert len(list(work.batches(100))) == 2
    np.testing.assert_array_equal(work.ids[1], parquet["C2"].to_numpy())
    np.testing.assert_array_equal(work.numerics[:, 12], parquet["I13"].to_numpy())
    np.testing.assert_array_equal(work.labels, parquet["label"].to_numpy())


@pytest.fixture(scope="module")
def click_log(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "clicks.tsv.gz"
    generate(["--rows", "600", "--output", str(path)])
    return path


def test_a_click_log_gives_ids_numbered_by_feature(click_log, tmp_path):
    of_log, batches = workload.read_batches(click_log, workload.W1, max_rows=10_000)
    criteo(["--input", str(click_log), "--output", str(tmp_path / "d")])
    shards = [pq.read_table(p) for p in sorted((tmp_path / "d" / "train").glob("*.parquet"))]
    rows = sum(len(shard) for shard in shards)
    assert len(batches.labels) == rows
    for feature, cardinality in enumerate(of_log.cardinalities):
        distinct = {x for s in shards for x in s[f"C{feature + 1}"].to_pylist()}
        assert cardinality == len(distinct)
        assert set(batches.ids[feature]) == set(range(cardinality))
    assert of_log.top_mlp == workload.W1.top_mlp
    assert not np.isnan(batches.numerics).any()


def test_data_that_is_none_is_refused(tmp_path):
    with pytest.raises(UsageError, match="must be a click log or a directory with _dataset"):
        workload.read_batches(tmp_path, workload.W1, max_rows=10)


def test_repeated_examples_begin_again():
    batches = workload.make_batches(TINY, 5)
    repeated = workload.repeat(batches, 12)
    np.testing.assert_array_equal(repeated.ids[:, 5:10], batches.ids)
    np.testing.assert_array_equal(repeated.labels[10:], batches.labels[:2])
    assert json.dumps(dataclasses.asdict(TINY))
