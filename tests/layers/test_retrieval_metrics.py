"""Ranks by counting equal a sorted list, and the metrics equal plain loops over it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps.errors import UsageError
from embedps.layers.candidates import Candidates
from embedps.layers.retrieval_metrics import RetrievalMetrics, count_ranks, places_of

DIM = 8


def ragged(lists: list[list[int]]) -> tf.RaggedTensor:
    return tf.ragged.constant(lists, tf.int64, ragged_rank=1, row_splits_dtype=tf.int64)


def candidates(vectors: np.ndarray, ids: np.ndarray, batch: int = 16) -> Candidates:
    rows = tf.data.Dataset.from_tensor_slices({"id": ids, "vector": vectors.astype(np.float32)})
    return Candidates(rows.batch(batch), lambda columns: columns["vector"], identifier="id")


class World:
    def __init__(self, *, users: int = 30, items: int = 100) -> None:
        rng = np.random.default_rng(1)
        self.queries = rng.integers(-3, 4, (users, DIM)).astype(np.float32)  # with ties
        self.vectors = rng.integers(-3, 4, (items, DIM)).astype(np.float32)
        self.ids = np.sort(rng.choice(10_000, items, replace=False)).astype(np.int64)
        draw = lambda most: [  # noqa: E731
            rng.choice(items, rng.integers(0, most), replace=False).tolist() for _ in range(users)
        ]
        self.wanted, self.seen = draw(6), draw(20)

    def order(self, user: int, *, without: list[int]) -> list[int]:
        scores = self.vectors @ self.queries[user]
        best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        return [i for i in best if i not in without]

    def expected(self, k: int) -> dict[str, float]:
        sums = dict.fromkeys(("recall", "ndcg", "hit_rate", "mrr"), 0.0)
        users = [user for user, wanted in enumerate(self.wanted) if wanted]
        for user in users:
            wanted = self.wanted[user]
            found = self.order(user, without=[i for i in self.seen[user] if i not in wanted])
            hits = [found.index(i) for i in wanted if found.index(i) < k]
            ideal = sum(1 / np.log2(r + 2) for r in range(min(k, len(wanted))))
            sums["recall"] += len(hits) / len(wanted)
            sums["ndcg"] += sum(1 / np.log2(r + 2) for r in hits) / ideal
            sums["hit_rate"] += bool(hits)
            sums["mrr"] += 1 / (min(found.index(i) for i in wanted) + 1)
        return {name: value / len(users) for name, value in sums.items()}

    def update(self, metric: RetrievalMetrics, users: slice = slice(None)) -> None:
        as_ids = lambda lists: ragged([self.ids[each].tolist() for each in lists])  # noqa: E731
        metric.update_state(
            tf.constant(self.queries[users]), as_ids(self.wanted[users]), as_ids(self.seen[users])
        )


@pytest.fixture
def world() -> World:
    return World()


def without_overlap(world: World) -> World:
    world.seen = [
        [i for i in seen if i not in wanted]
        for seen, wanted in zip(world.seen, world.wanted, strict=True)
    ]
    return world


def test_scores_equal_those_of_sorted_lists(world: World) -> None:
    world = without_overlap(world)
    metric = RetrievalMetrics(candidates(world.vectors, world.ids), at=(1, 5, 100))
    for start in range(0, 30, 7):  # several batches
        world.update(metric, slice(start, start + 7))
    found = metric.result()
    for k in (1, 5, 100):
        for name, value in world.expected(k).items():
            key = "mrr" if name == "mrr" else f"{name}@{k}"
            np.testing.assert_allclose(found[key], value, rtol=1e-9, err_msg=key)
    metric.reset_state()
    assert np.isnan(metric.result()["mrr"])


def test_ranks_equal_places_in_top_k(world: World) -> None:
    scores = world.queries @ world.vectors.T
    places = tf.math.top_k(scores, k=100).indices.numpy()
    every = ragged([list(range(100))] * 30)
    ranks = count_ranks(tf.constant(world.queries), tf.constant(world.vectors), every)
    np.testing.assert_array_equal(np.argsort(ranks.to_tensor().numpy(), axis=1), places)


def test_hit_rate_equals_tfrs_factorized_top_k(world: World) -> None:
    wanted = [each[0] if each else 0 for each in world.wanted]
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=world.vectors.shape).astype(np.float32)  # without ties
    corpus = candidates(vectors, world.ids)
    theirs = tfrs.metrics.FactorizedTopK(candidates=corpus, ks=(1, 10))
    theirs.update_state(tf.constant(world.queries), tf.constant(vectors[wanted]))
    ours = RetrievalMetrics(corpus, at=(1, 10))
    ours.update_state(tf.constant(world.queries), tf.constant(world.ids[wanted]))
    found = {
        re.findall(r"top_(\d+)_", metric.name)[0]: metric.result() for metric in theirs.metrics
    }
    for k in (1, 10):
        np.testing.assert_allclose(found[str(k)], ours.result()[f"hit_rate@{k}"], rtol=1e-6)


def test_items_outside_of_the_corpus_are_misses(world: World) -> None:
    metric = RetrievalMetrics(candidates(world.vectors, world.ids), at=(100,))
    metric.update_state(tf.constant(world.queries[:2]), tf.constant([-5, 99_999], tf.int64))
    assert float(metric.result()["recall@100"]) == 0
    assert float(metric.result()["mrr"]) == pytest.approx(1 / 101)


def test_an_item_that_is_no_candidate_is_not_found_among_more_than_all(world: World) -> None:
    metric = RetrievalMetrics(candidates(world.vectors, world.ids), at=(101,))
    wanted = ragged([[-5], [99_999, int(world.ids[3])]])
    metric.update_state(tf.constant(world.queries[:2]), wanted)
    found = metric.result()
    assert float(found["recall@101"]) == 0.25
    assert float(found["hit_rate@101"]) == 0.5


def test_an_item_that_a_row_has_twice_counts_once(world: World) -> None:
    world = without_overlap(world)
    metric = RetrievalMetrics(candidates(world.vectors, world.ids), at=(5,))
    expected = {**world.expected(5)}
    world.wanted = [[*each, *each[:2]] for each in world.wanted]
    world.update(metric)
    for name in ("recall", "ndcg", "hit_rate"):
        np.testing.assert_allclose(metric.result()[f"{name}@5"], expected[name], rtol=1e-9)


def test_a_paused_metric_counts_nothing(world: World) -> None:
    metric = RetrievalMetrics(candidates(world.vectors, world.ids))
    with metric.paused():
        world.update(metric)
    assert np.isnan(metric.result()["mrr"])


def test_in_a_graph_candidates_are_encoded_too(world: World) -> None:
    world = without_overlap(world)
    metric = RetrievalMetrics(candidates(world.vectors, world.ids), at=(5,))

    @tf.function
    def update() -> None:
        world.update(metric)

    update()
    np.testing.assert_allclose(metric.result()["ndcg@5"], world.expected(5)["ndcg"], rtol=1e-9)


def test_places_are_those_of_known_ids() -> None:
    known = tf.constant([-4, 0, 7, 2**62], tf.int64)
    ids = tf.constant([7, 1, -4, 2**62, -(2**63), 2**63 - 1, 0], tf.int64)
    assert places_of(ids, known).numpy().tolist() == [2, -1, 0, 3, -1, -1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"at": ()}, "values of k from 1"), ({"at": (0,)}, "values of k from 1")],
)
def test_wrong_declarations_are_refused(
    world: World, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        RetrievalMetrics(candidates(world.vectors, world.ids), **arguments)


def test_candidates_need_an_integer_identifier(world: World) -> None:
    rows = tf.data.Dataset.from_tensor_slices({"id": [str(i) for i in world.ids]})
    named = Candidates(rows.batch(4), lambda columns: tf.zeros([4, 2]), identifier="id")
    with pytest.raises(UsageError, match="int64 identifier"):
        RetrievalMetrics(named)


@pytest.mark.parametrize(
    ("splits", "values", "message"),
    [
        ([0, 1], [100], "places below 100"),
        ([0, 2], [1], "must rise from 0 to 1"),
        ([0, 1, 1], [1], "must rise"),
    ],
)
def test_wrong_lists_are_refused(
    world: World, splits: list[int], values: list[int], message: str
) -> None:
    wanted = tf.RaggedTensor.from_row_splits(
        tf.constant(values, tf.int64), tf.constant(splits, tf.int64), validate=False
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        count_ranks(tf.constant(world.queries[:1]), tf.constant(world.vectors), wanted)
