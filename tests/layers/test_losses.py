"""The losses of retrieval equal plain loops, and the correction makes them unbiased."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps.layers.losses import (
    Negatives,
    bpr_loss,
    cosine_contrastive_loss,
    in_batch_softmax_loss,
)

BATCH, DIM, DRAWN = 6, 4, 5


class Example:
    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.queries = rng.normal(size=(BATCH, DIM)).astype(np.float32)
        self.items = rng.normal(size=(BATCH, DIM)).astype(np.float32)
        self.ids = np.array([3, 8, 3, 9, 8, 1])  # 3 and 8 twice
        self.rates = np.array([0.9, 0.5, 0.9, 0.1, 0.5, 0.02], np.float32)
        self.drawn = rng.normal(size=(DRAWN, DIM)).astype(np.float32)
        self.drawn_ids = np.array([8, 20, 21, 1, 20])
        self.drawn_rates = np.array([0.5, 0.3, 0.01, 0.02, 0.3], np.float32)
        self.hard = rng.normal(size=(BATCH, 2, DIM)).astype(np.float32)
        self.hard_ids = np.array([[3, 5], [1, 2], [4, 4], [7, 7], [8, 0], [2, 6]])
        self.weights = np.array([1.0, 0.0, 2.0, 1.0, 0.5, 3.0], np.float32)

    def negatives(self, *, rates: bool = False) -> Negatives:
        return Negatives(
            vectors=tf.constant(self.drawn),
            ids=tf.constant(self.drawn_ids),
            rates=tf.constant(self.drawn_rates) if rates else None,
        )


def plain_softmax(
    e: Example, *, rates: bool, negatives: bool, hard: bool, temperature: float
) -> np.ndarray:
    losses = []
    for i in range(BATCH):
        columns = [(e.items[j], e.ids[j], e.rates[j], j == i) for j in range(BATCH)]
        if negatives:
            columns += [(e.drawn[j], e.drawn_ids[j], e.drawn_rates[j], False) for j in range(DRAWN)]
        logits, own = [], 0.0
        for vector, item, rate, is_own in columns:
            if item == e.ids[i] and not is_own:
                continue
            logit = e.queries[i] @ vector / temperature
            if rates:
                logit -= np.log(-np.log(1 - rate))
            logits.append(logit)
            own = logit if is_own else own
        if hard:
            others = zip(e.hard[i], e.hard_ids[i], strict=True)
            logits += [e.queries[i] @ v / temperature for v, item in others if item != e.ids[i]]
        losses.append(np.log(np.exp(logits).sum()) - own)
    return np.array(losses)


@pytest.mark.parametrize("rates", [False, True])
@pytest.mark.parametrize("negatives", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_in_batch_softmax_equals_loops(rates: bool, negatives: bool, hard: bool) -> None:
    e = Example()
    options: dict[str, Any] = {"temperature": 0.5}
    if rates:
        options["rates"] = tf.constant(e.rates)
    if negatives:
        options["negatives"] = e.negatives(rates=rates)
    if hard:
        options["hard"] = (tf.constant(e.hard), tf.constant(e.hard_ids))
    expected = plain_softmax(e, rates=rates, negatives=negatives, hard=hard, temperature=0.5)
    arrays = [tf.constant(each) for each in (e.queries, e.items, e.ids)]
    loss = in_batch_softmax_loss(*arrays, **options)
    np.testing.assert_allclose(loss, expected.mean(), rtol=1e-5)
    weighted = in_batch_softmax_loss(*arrays, **options, weights=tf.constant(e.weights))
    np.testing.assert_allclose(weighted, np.average(expected, weights=e.weights), rtol=1e-5)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ b.T / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)[None]


def test_cosine_contrast_equals_numpy() -> None:
    e = Example()
    counts = e.ids[:, None] != e.drawn_ids[None]
    above = np.maximum(cosines(e.queries, e.drawn) - 0.1, 0) * counts
    own = np.diag(cosines(e.queries, e.items))
    expected = (1 - own + 7 * above.sum(1) / counts.sum(1)).mean()
    arrays = [tf.constant(each) for each in (e.queries, e.items, e.ids)]
    loss = cosine_contrastive_loss(
        *arrays, negatives=e.negatives(), margin=0.1, negative_weight=7.0
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_bpr_equals_numpy() -> None:
    e = Example()
    counts = e.ids[:, None] != e.drawn_ids[None]
    own = (e.queries * e.items).sum(1, keepdims=True)
    losses = -np.log(1 / (1 + np.exp(e.queries @ e.drawn.T - own))) * counts
    expected = (losses.sum(1) / counts.sum(1)).mean()
    arrays = [tf.constant(each) for each in (e.queries, e.items, e.ids)]
    np.testing.assert_allclose(bpr_loss(*arrays, negatives=e.negatives()), expected, rtol=1e-5)


def test_a_batch_of_one_row_has_no_loss_and_a_finite_gradient() -> None:
    query = tf.Variable([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        loss = in_batch_softmax_loss(
            query, tf.constant([[0.5, 1.0]]), tf.constant([4]), rates=tf.constant([0.5])
        )
    assert float(loss) == 0
    assert np.all(np.isfinite(tape.gradient(loss, query)))


def learned_scores(
    drawn_all: np.ndarray, items: int, *, corrected: bool, num_negatives: int = 0
) -> np.ndarray:
    """Scores of items for one query that wants each item as often as it is in a batch."""
    rng = np.random.default_rng(1)
    scores = tf.Variable(tf.zeros([items, 1]))
    optimizer = tf.keras.optimizers.SGD(0.5)
    query = tf.ones([drawn_all.shape[1], 1])
    counts = np.zeros(items)

    @tf.function
    def step(drawn: tf.Tensor, rates: tf.Tensor, more: tf.Tensor, more_rates: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            used = rates if corrected else None
            negatives = None
            if num_negatives:
                negatives = Negatives(tf.gather(scores, more), more, more_rates)
            found = tf.gather(scores, drawn)
            loss = in_batch_softmax_loss(query, found, drawn, rates=used, negatives=negatives)
        optimizer.minimize(loss, [scores], tape=tape)

    for number, drawn in enumerate(drawn_all):
        more = rng.integers(0, items, num_negatives)
        rates = tf.constant((counts + 1) / (number + 2), tf.float32)
        step(tf.constant(drawn), tf.gather(rates, drawn), tf.constant(more), tf.gather(rates, more))
        counts[np.unique([*drawn, *more])] += 1
    return np.array(scores.numpy()[:, 0])


@pytest.mark.parametrize("num_negatives", [0, 12])
def test_the_correction_recovers_the_softmax_over_the_catalog(num_negatives: int) -> None:
    """With it, the scores become the logarithms of the items' probabilities."""
    rng = np.random.default_rng(0)
    popularity = rng.dirichlet(np.full(20, 0.3))
    drawn = rng.choice(20, size=(600, 32), p=popularity)
    common = popularity > 0.02
    wanted = np.log(popularity[common])

    def spread(corrected: bool) -> float:
        scores = learned_scores(drawn, 20, corrected=corrected, num_negatives=num_negatives)
        return float(np.std(scores[common] - wanted))

    assert spread(True) < 0.3 * np.std(wanted)
    assert spread(False) > 0.5 * np.std(wanted)
