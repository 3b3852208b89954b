import numpy as np
import pyarrow.parquet as pq

from benchmarks import drifting_stream
from embedps.data.dataset import Dataset


def test_what_is_told_of_the_stream_is_what_the_files_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(drifting_stream, "_CHUNK_ROWS", 20_000)
    told = drifting_stream.write_stream(tmp_path, 50_000, seed=3)
    dataset = Dataset.open(tmp_path)
    assert len(dataset.paths("train")) == 3
    table = pq.read_table([str(path) for path in dataset.paths("train")])
    ids, counts = np.unique(table["item"].to_numpy(), return_counts=True)
    assert told["items"] == len(ids)
    assert told["items_seen_once"] == (counts == 1).sum()
    assert told["items_seen_twice"] == (counts == 2).sum()
    assert told["most_frequent_item"] == counts.max()
    clicks = table["click"].to_numpy()
    assert dataset.split("train").positives == clicks.sum()
    times = table["time"].to_numpy()
    assert (np.diff(times) >= 0).all()
    assert np.ptp(times) / 86_400_000 > 0.999 * drifting_stream.DAYS


def test_the_planted_auc_is_that_of_the_logits():
    stream = drifting_stream.DriftingStream(5_000, seed=1)
    ((table, logits),) = stream.chunks()
    clicked = table["click"].to_numpy() > 0
    pairs = logits[clicked][:, None] > logits[~clicked][None, :]
    bins = np.clip((logits + 8) * 256, 0, 4095).astype(np.int64)
    histograms = [np.bincount(bins[clicked == kind], minlength=4096) for kind in (False, True)]
    assert abs(drifting_stream._auc(*histograms) - pairs.mean()) < 1e-3


def test_items_come_and_go_and_others_stay():
    stream = drifting_stream.DriftingStream(200_000, seed=2)
    ((table, _),) = stream.chunks()
    items = table["item"].to_numpy()
    first, middle, last = (set(items[at : at + 40_000].tolist()) for at in (0, 80_000, 160_000))
    assert len(first & middle & last) > 100  # lasting ones
    assert len((first & last) - middle) < 0.1 * len(first)
    assert len(first & last) < 0.2 * len(first)


def test_an_items_effect_is_its_own_and_of_the_told_size():
    items = np.arange(100_000, dtype=np.int64)
    own, vectors = drifting_stream.item_effects(items)
    again, _ = drifting_stream.item_effects(items[::-1].copy())
    np.testing.assert_array_equal(own, again[::-1])
    assert abs(own.std() - 0.7) < 0.02
    np.testing.assert_allclose(vectors.std(axis=0), np.ones(drifting_stream.FACTORS), atol=0.02)
