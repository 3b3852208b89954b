"""The scores of folds go on where an earlier run ended, and their means are those of NumPy."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks import layout, model_clicks
from benchmarks.harness import Run
from benchmarks.model_clicks import FOLDS, SEEDS, Scores, key
from benchmarks.model_folds import Fold, auc

HEAD = {"benchmark": "model_clicks", "environment": {}, "config": {}}


def test_a_second_run_measures_only_what_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    scores = Scores(Run(path, HEAD))
    all_pairs = scores.absent("s", "deepfm", {"flags": ("--a",)}, SEEDS)
    assert all_pairs == [(fold, seed) for fold in range(FOLDS) for seed in SEEDS]
    scores.add("s", "deepfm", 0, 0, 0.75)
    scores.add("s", "deepfm", 3, 2, 0.5)
    again = Scores(Run(path, HEAD))
    left = again.absent("s", "deepfm", {"flags": ("--a",)}, SEEDS)
    assert left == [pair for pair in all_pairs if pair not in [(0, 0), (3, 2)]]


def test_scores_made_with_other_settings_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    scores = Scores(Run(path, HEAD))
    for name in ("deepfm", "fm"):
        scores.absent("s", name, {"flags": []}, SEEDS)
        scores.add("s", name, 0, 0, 0.75)
    again = Scores(Run(path, HEAD))
    assert len(again.absent("s", "deepfm", {"flags": ["--epochs=3"]}, SEEDS)) == FOLDS * len(SEEDS)
    assert len(again.absent("s", "fm", {"flags": []}, SEEDS)) == FOLDS * len(SEEDS) - 1


def test_means_and_standard_errors_are_over_folds() -> None:
    rng = np.random.default_rng(1)
    found = {name: rng.uniform(0.5, 1, [FOLDS, len(SEEDS)]) for name in ("LightGBM", "deepfm")}
    scores = {
        name: {"auc": {key(f, s): float(aucs[f, s]) for f in range(FOLDS) for s in SEEDS}}
        for name, aucs in found.items()
    }
    sample = {"rows": 1234, "positives": 56, "scores": scores}
    text = layout.markdown(model_clicks.layout({"samples": {"shop": sample}}))
    folds = found["deepfm"].mean(1)
    difference = folds - found["LightGBM"].mean(1)
    cells = [
        "deepfm",
        f"{folds.mean():.4f}",
        f"{folds.std(ddof=1) / FOLDS**0.5:.4f}",
        f"{found['deepfm'].mean(0).min():.4f} to {found['deepfm'].mean(0).max():.4f}",
        f"{difference.mean():+.4f} ({difference.std(ddof=1) / FOLDS**0.5:.4f})",
    ]
    assert "| " + " | ".join(cells) + " |" in text.splitlines()
    del scores["deepfm"]["auc"][key(4, 2)]
    assert "deepfm" not in layout.markdown(
        model_clicks.layout({"samples": {"shop": sample}})
    )  # not whole


def test_inner_rows_are_of_the_rows_to_train_on() -> None:
    train, test = np.arange(0, 1000), np.arange(1000, 1200)
    fold = Fold(dataset=None, table=pa.table({}), number=2, train=train, test=test)  # type: ignore[arg-type]
    inner = fold.inner
    np.testing.assert_array_equal(np.sort(np.concatenate([inner.train, inner.test])), train)
    assert 0 < len(inner.test) < len(inner.train)


@pytest.mark.parametrize("values", [4, 1000])
def test_auc_counts_pairs(values: int) -> None:
    rng = np.random.default_rng(values)
    scores = rng.integers(0, values, 300) / values
    labels = rng.integers(0, 2, 300)
    gaps = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    np.testing.assert_allclose(auc(labels, scores), np.mean((gaps > 0) + 0.5 * (gaps == 0)))
