"""The planted model: a pure function of the seed, with the shares that it states."""

from __future__ import annotations

import numpy as np
import pytest

from embedps.pipelines.synthetic import planted_model
from embedps.pipelines.synthetic.click_rows import (
    ID_COLUMNS,
    ClickRows,
    draw_rows,
    rank_probability,
)
from embedps.pipelines.synthetic.planted_model import (
    BEST_AUC,
    CLICK_RATE,
    SHARES,
    PlantedModel,
    expected_auc,
    hash_normal,
    sigmoid,
)


@pytest.fixture(scope="module")
def model() -> PlantedModel:
    return PlantedModel.calibrated(9)


@pytest.fixture(scope="module")
def sample() -> ClickRows:
    return draw_rows(np.random.default_rng(77), 60_000)


def test_components_have_their_shares_of_the_variance(model: PlantedModel, sample: ClickRows):
    logits = model.logits(sample)
    assert sum(SHARES.values()) == pytest.approx(1.0)
    parts = {
        name: value * np.sqrt(SHARES[name]) / model.stds[name] * model.scale
        for name, value in model._components(sample).items()
    }
    total = sum(part.var() for part in parts.values())
    for name, part in parts.items():
        assert part.var() / total == pytest.approx(SHARES[name], rel=0.1)
    assert logits.var() == pytest.approx(total, rel=0.05)


def test_logits_do_not_depend_on_the_rows_beside(model: PlantedModel, sample: ClickRows):
    np.testing.assert_array_equal(model.logits(sample.head(50)), model.logits(sample)[:50])


def test_model_is_a_pure_function_of_its_seed(sample: ClickRows, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(planted_model, "PILOT_ROWS", 4096)  # as with more, but quick
    rows = sample.head(500)
    first, again, other = (PlantedModel.calibrated(seed).logits(rows) for seed in (9, 9, 10))
    np.testing.assert_array_equal(first, again)
    assert abs(np.corrcoef(other, first)[0, 1]) < 0.5


def test_calibration_reaches_what_was_asked(model: PlantedModel, sample: ClickRows):
    other = PlantedModel.calibrated(4, click_rate=0.03, best_auc=0.75)
    for made, click_rate, best_auc in ((model, CLICK_RATE, BEST_AUC), (other, 0.03, 0.75)):
        probabilities = sigmoid(made.logits(sample))
        assert probabilities.mean() == pytest.approx(click_rate, rel=0.03)
        assert expected_auc(probabilities) == pytest.approx(best_auc, abs=0.005)


def test_expected_auc_equals_the_sum_over_pairs():
    p = np.random.default_rng(0).random(60)
    above = (p[:, None] > p[None, :]) + 0.5 * (p[:, None] == p[None, :])
    weights = p[:, None] * (1 - p[None, :])
    assert expected_auc(p) == pytest.approx(float((above * weights).sum() / weights.sum()))


def test_hash_normal_is_standard_normal():
    values = hash_normal(5, np.arange(200_000))
    assert abs(values.mean()) < 5 / np.sqrt(200_000)
    assert values.std() == pytest.approx(1.0, abs=0.01)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(values, hash_normal(6, np.arange(200_000)))[0, 1]) < 0.02


def test_rare_ids_are_those_under_the_probability():
    for column, first in enumerate(planted_model.FIRST_RARE_RANKS):
        assert rank_probability(column, np.array([first - 1]))[0] >= planted_model.RARE_PROBABILITY
        if first < ID_COLUMNS[column].cardinality:
            assert rank_probability(column, np.array([first]))[0] < planted_model.RARE_PROBABILITY
