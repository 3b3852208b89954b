"""The drifting stream, and the AUCs of models that are refreshed at intervals."""

import numpy as np
import pytest

from benchmarks import refresh_interval
from benchmarks.refresh_interval import INTERVALS, Stream, measure


def test_items_come_and_go_and_clicks_follow_the_probabilities():
    stream = Stream(1, 20_000)
    seen = []
    for _ in range(3):
        table, probability = stream.next()
        seen.append(set(table["item"].to_pylist()))
        label = table["label"].to_numpy()
        error = np.sqrt(np.sum(probability * (1 - probability))) / len(label)
        assert abs(label.mean() - probability.mean()) < 5 * error
    window = refresh_interval._NEW_ITEMS * refresh_interval._SHOWN_FILES
    for i, items in enumerate(seen):
        first = i * refresh_interval._NEW_ITEMS
        assert items == set(range(first, first + window))


@pytest.mark.parametrize(("name", "effects"), [("user", "_users"), ("pair", "_pairs")])
def test_effects_forget_at_their_pace_and_keep_their_size(name, effects):
    stream = Stream(2, 10)
    began = np.array(getattr(stream, effects))
    files = int(refresh_interval._HOURS[name] / refresh_interval.HOURS_PER_FILE)
    for _ in range(files):
        stream._drift()
    now = getattr(stream, effects)
    assert np.corrcoef(began.ravel(), now.ravel())[0, 1] == pytest.approx(np.exp(-1), abs=0.15)
    assert now.std() == pytest.approx(refresh_interval._SIZES[name], rel=0.15)


@pytest.mark.slow
def test_intervals_are_scored_by_models_of_before(tmp_path):
    found = measure(1, files=5, warm_up=2, rows=2000, folder=tmp_path)
    assert set(found) == {*INTERVALS, "never", "best"}
    # Within five files, intervals of ten files or more were refreshed before the first one only.
    assert found["5 h"] == found["10 h"] == found["24 h"] == found["never"]
    assert found["0.5 h"] != found["5 h"]
    assert all(0.5 < value < found["best"] for name, value in found.items() if name != "best")
