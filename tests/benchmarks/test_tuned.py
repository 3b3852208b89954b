"""The scores of `embedps tune`, and the logistic regression that it is compared with."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import tuned
from benchmarks.baselines import plain_logistic
from benchmarks.layout import Table
from embedps import Trainer, tune
from embedps.run.candidates import base_options, first_candidates
from embedps.training import tuning
from tests.builders import write_dataset


def make_rows(*, rate: float = 0.3) -> tuple[plain_logistic.Rows, Any]:
    rng = np.random.default_rng(0)
    numerics = np.where(rng.random((400, 2)) < 0.2, np.nan, rng.normal(3, 5, (400, 2)))
    ids = rng.integers(-5, 5, (400, 3))
    rows = plain_logistic.Rows(numerics, ids, np.arange(300))
    return rows, (rng.random(400) < rate).astype(float)


@pytest.mark.parametrize("strength", [0.3, 10.0])
def test_plain_weights_are_where_the_penalized_loss_is_flat(strength: float) -> None:
    rows, labels = make_rows()
    train = np.arange(300)
    weights = rows.fit(labels, train, strength)
    error = 1 / (1 + np.exp(-rows.logits(weights, train))) - labels[train]
    columns = np.zeros((300, len(weights)))
    for column in rows.hashed[train].T:
        columns[train, column] = 1
    columns[:, -rows.dense.shape[1] :] = rows.dense[train]
    penalty = strength * weights
    penalty[-1] = 0
    np.testing.assert_allclose(columns.T @ error, -penalty, atol=0.02)


def test_plain_chances_of_one_label_are_numbers() -> None:
    numerics, ids = np.zeros((60, 1)), np.zeros((60, 2), np.int64)
    chances, _ = plain_logistic.predict(numerics, ids, np.zeros(60), 50)
    assert chances.shape == (10,)
    assert np.all(chances < 0.1)


@pytest.mark.parametrize("strength", [None, 20.0])
def test_row_l2_and_numeric_l2_score_as_an_exact_penalty_of_that_strength(
    strength: float | None, tmp_path: Path
) -> None:
    """That of the candidate, half the number of columns, or another one."""
    dataset = write_dataset(tmp_path / "set", train=(3000,), evaluation=(3000,))

    def exact(
        numerics: tuned.Array, ids: tuned.Array, labels: tuned.Array, num_train: int
    ) -> tuned.Array:
        train = np.arange(num_train)
        rows = plain_logistic.Rows(numerics, ids, train)
        # No two ids share a weight, as they do where they are hashed.
        places = [np.unique(column, return_inverse=True) for column in ids.T]
        firsts = np.cumsum([0, *(len(known) for known, _ in places)])
        rows.hashed = np.stack([at for _, at in places], 1) + firsts[:-1]
        rows._hashed = int(firsts[-1])
        penalty = strength or (numerics.shape[1] + ids.shape[1]) / 2
        logits = rows.logits(rows.fit(labels, train, penalty), np.arange(num_train, len(labels)))
        chances: tuned.Array = 1 / (1 + np.exp(-logits))
        return chances

    expected = tuned._of_arrays(dataset, exact)
    found = first_candidates(dataset, ("logistic_regression",))
    (candidate,) = (c for c in found if "row_l2" in c.options and "cross" not in c.options)
    strengths = dict.fromkeys(("row_l2", "numeric_l2"), strength or candidate.options["row_l2"])
    assert strength or strengths.items() <= candidate.options.items()
    candidate = dataclasses.replace(candidate, options={**candidate.options, **strengths})
    where = {"data": str(dataset.directory), "model_dir": str(tmp_path / "m"), "eval": "inline"}
    values = {**base_options(dataset), **where, "eval_epochs": candidate.options["epochs"]}
    run = candidate.run(values)
    scored = Trainer(run.recommender(dataset), dataset, run.config).fit().scores[-1]
    assert scored.auc is not None
    assert scored.logloss is not None
    np.testing.assert_allclose(scored.auc, expected["auc"], atol=0.001)
    np.testing.assert_allclose(scored.logloss, expected["logloss"], rtol=0.001)


def test_a_candidate_scores_as_the_plain_one(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", train=(3000,), evaluation=(3000,))
    plain = tuned._of_arrays(dataset, tuned._logistic)
    found = first_candidates(dataset, ("logistic_regression",))
    (candidate,) = (each for each in found if each.options.get("row_weight_decay") == 0.002)
    where = {"data": str(dataset.directory), "model_dir": str(tmp_path / "m"), "eval": "inline"}
    run = candidate.run({**base_options(dataset), **where})
    scored = Trainer(run.recommender(dataset), dataset, run.config).fit().scores[-1]
    assert scored.auc is not None
    assert scored.logloss is not None
    assert scored.auc > plain["auc"] - 0.005
    assert scored.logloss < 1.005 * plain["logloss"]


def test_search_goes_by_the_time_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "clock", tuning.clock)
    ran: list[Any] = []
    monkeypatch.setattr(tune, "tune", lambda config: ran.append((config, tuning.clock)))
    tuned.search("D", "M", 3.0)
    assert ran == [(tune.TuneConfig(data="D", model_dir="M", minutes=3.0), time.process_time)]


def test_arrays_are_those_of_the_splits(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", train=(30, 20), evaluation=(25,))

    def predict(numerics: Any, ids: Any, labels: Any, num_train: int) -> Any:
        assert (numerics.shape, ids.shape) == ((75, 2), (75, len(dataset.categorical)))
        assert num_train == 50
        return labels[num_train:]

    assert tuned._of_arrays(dataset, predict) == pytest.approx({"auc": 1, "logloss": 0}, abs=1e-6)


def test_table_marks_the_best_and_says_what_is_not_installed() -> None:
    scores = {
        tuned.LR: {"auc": 0.7, "logloss": 0.4, "secs": 1.2},
        tuned.TUNED: {"auc": 0.8, "logloss": 0.5, "secs": 120.4},
    }
    about = {"rows": 1000, "eval_rows": 250, "positives": 50, "scores": scores}
    (table,) = tuned.layout({"datasets": {"avazu": about}})
    assert isinstance(table, Table)
    assert table.heads[0] == "avazu: 1,000 rows, 50 positive"
    assert table.rows == [
        [tuned.LR, "0.7000", "**0.4000**", "1"],
        [tuned.TREES, "not installed", "", ""],
        [tuned.TUNED, "**0.8000**", "0.5000", "120"],
    ]
