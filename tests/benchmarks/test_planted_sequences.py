from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from benchmarks import ratings, sequences
from benchmarks.datasets import write_dataset
from benchmarks.planted_sequences import CLICK, FAVORITES, KINDS, LENGTH, World, places_of


@pytest.fixture(scope="module")
def world():
    return World(users=300, items=200)


def test_chances_are_of_the_follower_and_the_favorites(world):
    for user in range(5):
        last = world.sequences[user, -2]
        chances = world.chances(user, last)
        assert chances.sum() == pytest.approx(1)
        liked = {*world._favorites[user], world._follower[world._kind[last]]}
        of_kind = np.bincount(world._kind, chances, KINDS)
        assert set(np.flatnonzero(of_kind)) == liked
        for kind in liked:
            is_favorite, follows = (
                kind in world._favorites[user],
                kind == world._follower[world._kind[last]],
            )
            assert of_kind[kind] == pytest.approx(0.5 / FAVORITES * is_favorite + 0.5 * follows)


def test_half_of_the_next_items_follow_the_last_kind(world):
    kinds = world._kind[world.sequences]
    follows = kinds[:, 1:] == world._follower[kinds[:, :-1]]
    chance = 0.5 + 0.5 / KINDS  # a favorite may be the follower by chance
    assert follows.mean() == pytest.approx(chance, abs=4 * (0.25 / follows.size) ** 0.5 + 0.01)


def test_rows_have_what_came_before(world, tmp_path):
    places = places_of(world)
    tables = {split: world.next_items(*each) for split, each in places.items()}
    dataset = write_dataset(tmp_path, tables, labels=(CLICK,))
    assert [c.name for c in dataset.categorical if c.ragged] == ["history"]
    assert dataset.split("eval").rows == 300
    row = tables["train"].slice(7, 1).to_pylist()[0]
    place = int(places["train"][1][7])
    sequence = world.sequences[row["user"]].tolist()
    assert row["item"] == sequence[place]
    assert row["history"] == sequence[max(place - 50, 0) : place]
    assert places["train"][1].max() < LENGTH - 1  # the last item is held out


def test_ranks_of_items_that_follow_others(monkeypatch):
    monkeypatch.setattr(sequences, "ITEMS", 3)
    sequences_of_two = np.array([[0, 1, 0, 2], [0, 1, 2, 1]])
    world = cast(World, SimpleNamespace(sequences=sequences_of_two))
    counts = np.array([[0, 2, 0], [1, 0, 1], [0, 0, 0]])  # without the last, held-out items
    popular = np.array([3, 2, 1])  # times in 0, 1, 0 and 0, 1, 2
    np.testing.assert_array_equal(sequences.popularity(world), popular)
    np.testing.assert_allclose(
        sequences.followers(world), (counts + popular / 8).astype(np.float64)
    )


def test_biases_of_ratings_without_noise_are_found():
    users, items = np.divmod(np.arange(400), 20)
    stars = 3 + (users % 2) - (items % 2)
    rows = np.stack([users, items, stars], 1)
    order = np.random.default_rng(0).permutation(400)
    error = ratings.biases(rows[order[:300]], rows[order[300:]])
    assert error < 0.15
