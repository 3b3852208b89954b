"""Metrics from counts, against their definitions over all examples at once."""

import math

import numpy as np
import pytest
import tensorflow as tf

from embedps import metrics
from embedps.metrics import Accumulator, ClickCounts, click_scores, count, zero_counts
from tests import plain_scores

NUM = 200_000


def scores_of(totals):
    found = click_scores(totals["sums"], totals["histograms"])
    return {name: float(value) for name, value in found.items()}


def exact_auc(labels, logits):
    """The rank formula, ties at their mean rank."""
    _, inverse, counts = np.unique(logits, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    positives = labels == 1
    n1, n0 = positives.sum(), (~positives).sum()
    return (ranks[positives].sum() - n1 * (n1 + 1) / 2) / (n1 * n0)


def make_accumulator() -> Accumulator:
    return Accumulator(scores_of)


def as_dict(counts: ClickCounts) -> dict[str, tf.Tensor]:
    """As a unit returns them."""
    return {"examples": counts.sums[0], "loss": counts.sums[2], **counts._asdict()}


def accumulate(labels, logits, batch=None):
    accumulator = make_accumulator()
    batch = batch or len(labels)
    for i in range(0, len(labels), batch):
        accumulator.add(
            as_dict(
                count(
                    tf.constant(labels[i : i + batch], tf.float32),
                    tf.constant(logits[i : i + batch], tf.float32),
                )
            )
        )
    return accumulator.result()


def planted(spread, offset=0.0, slope=0.7, num=NUM):
    """Logits of a spread around an offset, and labels drawn from them, not of perfect order."""
    rng = np.random.default_rng(int(spread * 1000) + int(offset))
    z = rng.normal(0, 1, num)
    labels = (rng.random(num) < 1 / (1 + np.exp(-(slope * z - 1)))).astype(np.float32)
    return labels, (spread * z + offset).astype(np.float32)


def bimodal():
    rng = np.random.default_rng(3)
    labels = (rng.random(NUM) < 0.5).astype(np.float32)
    return labels, (40 * rng.choice([-1, 1], NUM) + labels + rng.normal(0, 2, NUM)).astype("f4")


def ties(levels):
    labels, logits = planted(1.0)
    return labels, np.round(logits * levels) / np.float32(levels)


CASES = {
    "usual": lambda: planted(1.0),
    "rare clicks": lambda: planted(1.0, offset=-6.0),
    "narrow": lambda: planted(0.04),
    "narrow and off centre": lambda: planted(0.05, offset=-1.2),
    "off centre": lambda: planted(0.5, offset=-8.0),
    "extreme": lambda: planted(60.0),
    "past where the sigmoid is 1": lambda: planted(2.0, offset=25.0),
    "more extreme": lambda: planted(3000.0),
    "in two heaps": bimodal,
    "five ties": lambda: ties(2),
    "two ties": lambda: (lambda y, x: (y, np.sign(x)))(*planted(1.0)),
    "all tied": lambda: (lambda y, x: (y, 0 * x))(*planted(1.0)),
    "perfect order": lambda: (lambda y, x: (y, 4 * y - 2 + 0 * x))(*planted(1.0)),
    "reversed": lambda: (lambda y, x: (y, -x))(*planted(1.0)),
}


@pytest.mark.parametrize("case", CASES)
def test_auc_is_within_1e_4_of_the_rank_formula(case):
    labels, logits = CASES[case]()
    assert accumulate(labels, logits).auc == pytest.approx(exact_auc(labels, logits), abs=1e-4)


SMOOTH = ("usual", "rare clicks", "narrow", "off centre", "extreme")


@pytest.mark.parametrize("case", SMOOTH)
def test_a_smooth_histogram_has_no_doubt(case):
    labels, logits = CASES[case]()
    totals = count(tf.constant(labels), tf.constant(logits, tf.float32))
    assert metrics.nearly_equal(totals.histograms) == {}


def test_auc_of_scores_that_crowd_in_a_bin_is_within_what_is_told():
    labels, logits = planted(1.0, num=20_000)
    crowd = np.arange(len(labels)) % 2 == 0
    logits[crowd] = -0.4854 + logits[crowd] * 1e-5  # in order still, as float32
    totals = count(tf.constant(labels), tf.constant(logits, tf.float32))
    told = metrics.nearly_equal(totals.histograms)
    off = abs(scores_of(totals._asdict())["auc"] - exact_auc(labels, logits))
    assert 0.01 < off <= told["auc_within"] < 0.13
    assert told["share"] == pytest.approx(0.5, abs=0.01)


def test_line_of_scores_says_that_they_are_nearly_equal():
    labels, logits = CASES["all tied"]()
    counts = as_dict(count(tf.constant(labels), tf.constant(logits, tf.float32)))
    ties = {"ctr_nearly_equal": metrics.nearly_equal(counts["histograms"])}
    accumulator = Accumulator(scores_of, lambda totals: ties)
    accumulator.add(counts)
    assert (
        "200,000 examples (100% of the scores are nearly or quite equal, so the AUC may be off by "
        "0.500)" in accumulator.result().describe()
    )


def test_exact_auc_of_this_file_counts_pairs():
    labels, logits = np.array([0, 1, 0, 1, 1]), np.array([0.1, 0.1, 0.5, 0.7, 0.3])
    pairs = [(p > n) + 0.5 * (p == n) for p in logits[labels == 1] for n in logits[labels == 0]]
    assert exact_auc(labels, logits) == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize("offset", [0.0, -4.0, 30.0])
def test_log_loss_entropy_and_calibration_follow_their_formulas(offset):
    labels, logits = planted(1.5, offset, num=20_000)
    x = logits.astype(np.float64)
    loss = np.mean(np.logaddexp(0, x) - labels * x)
    rate = labels.mean(dtype=np.float64)
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
    found = accumulate(labels, logits)
    assert found.examples == 20_000
    assert found.logloss == pytest.approx(loss, rel=1e-6)
    assert found.normalized_entropy == pytest.approx(loss / entropy, rel=1e-6)
    predicted = (1 / (1 + np.exp(-x))).sum()
    assert found.calibration == pytest.approx(predicted / labels.sum(), rel=1e-6)


def test_normalized_entropy_of_the_base_rate_is_one():
    labels, _ = planted(1.0, num=10_000)
    rate = labels.mean(dtype=np.float64)
    found = accumulate(labels, np.full(10_000, np.log(rate / (1 - rate)), np.float32))
    assert found.normalized_entropy == pytest.approx(1, abs=1e-6)
    assert found.calibration == pytest.approx(1, abs=1e-5)
    assert found.auc == 0.5


def test_counts_add_up_over_batches_of_any_size():
    labels, logits = planted(2.0, num=10_001)
    whole = accumulate(labels, logits)
    for batch in (1000, 4096, 10_000):
        parts = accumulate(labels, logits, batch)
        assert (parts.auc, parts.examples) == (whole.auc, whole.examples)
        assert parts.logloss == pytest.approx(whole.logloss, rel=1e-12)
        assert parts.calibration == pytest.approx(whole.calibration, rel=1e-12)


def test_what_the_metric_adds_does_not_depend_on_what_it_has():
    labels, logits = (tf.constant(each) for each in planted(2.0, num=1000))
    metric, once = metrics.ClickMetrics(), count(labels, logits)
    for times in (1, 2, 3):
        metric.update_state(labels, logits)
        for variable, added in zip(metric.variables, once, strict=True):
            np.testing.assert_allclose(variable, times * added.numpy(), rtol=1e-12)


def test_counts_add_up_in_a_graph_as_outside():
    labels, logits = planted(2.0, num=1000)

    @tf.function
    def loop(labels, logits):
        counts = zero_counts()
        for i in tf.range(10):
            more = count(labels[i * 100 : i * 100 + 100], logits[i * 100 : i * 100 + 100])
            counts = counts.plus(more)
        return counts

    accumulator = make_accumulator()
    accumulator.add(as_dict(loop(tf.constant(labels), tf.constant(logits))))
    whole = accumulate(labels, logits)
    assert accumulator.result().auc == whole.auc
    assert accumulator.result().logloss == pytest.approx(whole.logloss, rel=1e-6)


def test_no_examples_have_no_scores():
    found = make_accumulator().result()
    assert found.examples == 0
    assert all(
        math.isnan(x)
        for x in (found.auc, found.logloss, found.normalized_entropy, found.calibration)
    )
    empty = accumulate_nothing = make_accumulator()
    accumulate_nothing.add(as_dict(count(tf.zeros([0]), tf.zeros([0]))))
    assert empty.result().examples == 0


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_auc_and_entropy_are_not_defined_with_one_label_only(label):
    found = accumulate(np.full(10, label, np.float32), np.linspace(-1, 1, 10, dtype=np.float32))
    assert math.isnan(found.auc)
    assert math.isnan(found.normalized_entropy)
    assert math.isfinite(found.logloss)
    assert math.isnan(found.calibration) == (label == 0)


def test_nan_logit_is_seen_in_the_scores_and_counted_once():
    labels, logits = planted(1.0, num=100)
    logits[3] = np.nan
    counts = count(tf.constant(labels), tf.constant(logits))
    assert math.isnan(float(counts.sums[2]))
    assert int(tf.reduce_sum(counts.histograms)) == 100
    found = accumulate(labels, logits)
    assert all(math.isnan(found.get(n)) for n in ("auc", "logloss", "normalized_entropy"))
    assert found.describe().endswith("100 examples (some have a loss that is not a number)")
    assert accumulate(*planted(1.0, num=100)).describe().endswith("100 examples")


@pytest.mark.parametrize("logit", [np.inf, -np.inf, 3e38, -3e38])
def test_largest_logits_fall_into_the_outer_bins(logit):
    counts = count(tf.constant([1.0, 0.0]), tf.constant([logit, 0.0], tf.float32))
    bins = np.flatnonzero(counts.histograms.numpy()[1])
    assert bins == [metrics.NUM_BINS - 1 if logit > 0 else 0]


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("levels", [0, 3])
def test_scores_equal_their_definitions_with_ties_and_weights(soft, levels):
    rng = np.random.default_rng(5)
    labels, logits = planted(1.5, num=1500)
    labels = rng.random(1500).astype("f4") if soft else labels
    logits = np.round(logits * levels) / np.float32(levels) if levels else logits
    weights = rng.choice([0, 0.5, 1, 7], 1500).astype("f4")
    present = rng.random(1500) < 0.8
    labels[~present], logits[np.flatnonzero(weights == 0)[0]] = 0, 30
    metric = metrics.ClickMetrics(soft=soft, weighted=True)
    for part in np.split(np.arange(1500), 4):
        metric.update_state(*(tf.constant(x[part]) for x in (labels, logits, weights, present)))
    found = {name: float(value) for name, value in metric.result().items()}
    y, x, w = labels[present], logits[present], weights[present]
    expected = plain_scores.click_scores(y, x)
    expected |= {f"weighted_{n}": v for n, v in plain_scores.click_scores(y, x, w).items()}
    assert found == pytest.approx(expected, abs=3e-4)
    assert "AUC" in accumulate(y, x).describe()
    assert "rmse" not in accumulate(y, x).describe()


def test_an_example_of_weight_0_does_not_count_even_if_it_is_not_a_number():
    labels, logits = planted(1.0, num=100)
    weights = np.ones(100, np.float32)
    logits[3], weights[3] = np.nan, 0
    metric = metrics.ClickMetrics(weighted=True)
    metric.update_state(tf.constant(labels), tf.constant(logits), tf.constant(weights))
    found = metric.result()
    assert math.isnan(found["auc"])
    rest = np.arange(100) != 3
    assert float(found["weighted_auc"]) == pytest.approx(
        plain_scores.auc(labels[rest], logits[rest]), abs=1e-3
    )
