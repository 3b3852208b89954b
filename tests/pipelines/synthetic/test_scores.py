"""Scores summed over blocks equal the exact ones over all rows."""

from __future__ import annotations

import numpy as np
import pytest

from embedps.pipelines.synthetic.scores import Score


def test_scores_of_blocks_add_up_to_the_exact_ones():
    rng = np.random.default_rng(0)
    logits = rng.normal(-1, 1.5, 4000)
    labels = rng.random(4000) < 1 / (1 + np.exp(-logits))
    score = Score.of(logits[:1000], labels[:1000]) + Score.of(logits[1000:], labels[1000:])
    wins = logits[labels][:, None] > logits[~labels][None, :]
    p = 1 / (1 + np.exp(-logits))
    assert score.rows == 4000
    assert score.click_rate == labels.mean()
    assert score.auc == pytest.approx(wins.mean(), abs=1e-4)
    assert score.logloss == pytest.approx(-np.where(labels, np.log(p), np.log(1 - p)).mean())


@pytest.mark.parametrize("label", [True, False])
def test_auc_of_one_class_is_one_half(label: bool):
    assert Score.of(np.zeros(3), np.full(3, label)).auc == 0.5


def test_logits_out_of_range_keep_their_order_and_loss():
    logits, labels = np.array([-900.0, 900.0]), np.array([True, False])
    score = Score.of(logits, labels)
    assert score.auc == 0.0
    assert score.logloss == 900.0


def test_no_rows_score_nothing():
    assert (Score().rows, Score().click_rate, Score().logloss, Score().auc) == (0, 0.0, 0.0, 0.5)
