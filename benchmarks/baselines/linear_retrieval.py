"""Scores item-kNN and EASE on users and their items, in NumPy alone.

EASE (Steck 2019, arXiv:1905.03375) regresses each item on all others, so it inverts a matrix of
items x items. Where that is too large, an item is regressed on the items that it shares users with,
at most `MAX_NEIGHBOURS` of the nearest (the sparse form: Steck 2019, arXiv:1910.09645).

Settings are chosen by Recall@20 on valid after training on train; the best are trained on both and
scored on test. Items that a user had are left out. There is no chance in it, so no seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

K = 20
MAX_NEIGHBOURS = 100
MAX_DENSE_ITEMS = 6000
KNN = [(power, shrink) for power in (0.2, 0.3, 0.5) for shrink in (0.0, 5.0, 50.0)]
EASE = (20.0, 60.0, 200.0, 500.0)


@dataclasses.dataclass(frozen=True)
class Lists:
    """Values by row: those of row i are `values[starts[i] : starts[i + 1]]`."""

    starts: Ints
    values: Ints

    @classmethod
    def of(cls, rows: Ints, values: Ints, count: int) -> Lists:
        """Groups values by row, in their order."""
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=count), out=starts[1:])
        return cls(starts, values[np.argsort(rows, kind="stable")])

    def __getitem__(self, row: int) -> Ints:
        return self.values[self.starts[row] : self.starts[row + 1]]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of items that share users, each in both orders, and each item with itself.

    Attributes:
      keys: first * items + second, ascending, int64 [pairs].
      counts: of the users that have both, int64 [pairs].
      items: how many there are.
    """

    keys: Ints
    counts: Ints
    items: int

    @classmethod
    def of(cls, users: Lists, items: int, at_once: int = 20_000_000) -> Pairs:
        """Counts the pairs of each user's items."""
        keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        waiting: list[Ints] = []
        waits = 0
        for user in range(len(users.starts) - 1):
            own = users[user]
            waiting.append((own[:, None] * items + own[None, :]).ravel())
            waits += len(own) ** 2
            if waits > at_once or user == len(users.starts) - 2:
                more, times = np.unique(np.concatenate(waiting), return_counts=True)
                keys, places = np.unique(np.concatenate([keys, more]), return_inverse=True)
                sums = np.bincount(places, np.concatenate([counts, times]).astype(np.float64))
                counts, waiting, waits = sums.astype(np.int64), [], 0
        return cls(keys, counts, items)

    def among(self, items: Ints) -> Floats:
        """Gives the counts of all pairs of some items, [..., n, n] of [..., n]; 0 beside -1."""
        first, second = items[..., :, None], items[..., None, :]
        keys = first * self.items + second
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found = (self.keys[places] == keys) & (first >= 0) & (second >= 0)
        return np.where(found, self.counts[places], 0).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Weights:
    """What an item of a user adds to the scores of others: a sparse matrix by rows."""

    others: Lists
    values: Floats

    @classmethod
    def of(cls, items: Ints, others: Ints, values: npt.NDArray[Any], count: int) -> Weights:
        """Groups the weights by the user's item."""
        order = np.argsort(items, kind="stable")
        return cls(Lists.of(items, others, count), values[order].astype(np.float32))

    def scores(self, own: Ints) -> Floats:
        """Scores all items for a user of such items, float32 [items]."""
        found = np.zeros(len(self.others.starts) - 1, np.float32)
        for item in own:
            found[self.others[item]] += self.values[
                self.others.starts[item] : self.others.starts[item + 1]
            ]
        return found


def neighbours(setting: tuple[float, float], pairs: Pairs) -> Weights:
    """Weighs pairs by the users that have both over a power of the users of each (item-kNN)."""
    power, shrink = setting
    items, others = pairs.keys // pairs.items, pairs.keys % pairs.items
    users = np.zeros(pairs.items)
    users[items[items == others]] = pairs.counts[items == others]
    weights = pairs.counts / ((users[items] * users[others]) ** power + shrink)
    return Weights.of(
        items, others, np.where(items == others, 0, weights).astype(np.float32), pairs.items
    )


def ease(regularization: float, pairs: Pairs) -> Weights:
    """Regresses each item on all others, or on its nearest where there are many items."""
    if pairs.items <= MAX_DENSE_ITEMS:
        gram = pairs.among(np.arange(pairs.items))
        inverse = np.linalg.inv(gram + regularization * np.eye(pairs.items, dtype=np.float32))
        dense = -inverse / np.diag(inverse)[None, :]
        np.fill_diagonal(dense, 0)
        items, others = np.divmod(np.arange(pairs.items**2), pairs.items)
        return Weights.of(items, others, dense.ravel(), pairs.items)
    items, others, counts = pairs.keys // pairs.items, pairs.keys % pairs.items, pairs.counts
    users = np.zeros(pairs.items)
    users[items[items == others]] = counts[items == others]
    near = items != others
    items, others, counts = items[near], others[near], counts[near]
    order = np.lexsort((-counts / np.sqrt(users[items] * users[others]), others))
    nearest = Lists.of(others[order], items[order], pairs.items)
    lengths = np.minimum(np.diff(nearest.starts), MAX_NEIGHBOURS)
    waiting = np.argsort(lengths, kind="stable")
    waiting = waiting[lengths[waiting] > 0]
    found: list[tuple[Ints, Ints, Floats]] = []
    while len(waiting):
        # Items of about equally many neighbours are solved together.
        batch = waiting[: max(1, 4_000_000 // int(lengths[waiting[:2000]].max()) ** 2)][:2000]
        waiting = waiting[len(batch) :]
        width = int(lengths[batch].max())
        places = nearest.starts[batch][:, None] + np.arange(width)
        is_there = np.arange(width) < lengths[batch][:, None]
        places = np.minimum(places, len(nearest.values) - 1)
        near_by = np.where(is_there, nearest.values[places], -1)
        with_item = pairs.among(np.concatenate([near_by, batch[:, None]], axis=1))
        left = with_item[:, :width, :width] + regularization * np.eye(width, dtype=np.float32)
        solved = np.linalg.solve(left, with_item[:, :width, width:])[..., 0]
        targets = np.broadcast_to(batch[:, None], near_by.shape)
        found.append((near_by[is_there], targets[is_there], solved[is_there]))
    parts = [np.concatenate(part) for part in zip(*found, strict=True)]
    return Weights.of(parts[0], parts[1], parts[2], pairs.items)


def recall_and_gain(
    score: Callable[[Ints], Floats], train: Lists, test: Lists, users: Ints
) -> tuple[float, float]:
    """Gives the mean Recall@20 and NDCG@20 of users, by scores of all items for a user's items."""
    discounts = 1 / np.log2(np.arange(2, K + 2))
    recalls, gains = [], []
    for user in users:
        own, wanted = train[user], test[user]
        scores = score(own)
        scores[own] = -np.inf
        best = np.argpartition(-scores, K)[:K]
        best = best[np.argsort(-scores[best], kind="stable")]
        hits = np.isin(best, wanted)
        recalls.append(hits.sum() / len(wanted))
        gains.append((hits * discounts).sum() / discounts[: len(wanted)].sum())
    return float(np.mean(recalls)), float(np.mean(gains))


def score_linear(data: Mapping[str, Ints], *, max_users: int = 5000) -> dict[str, Any]:
    """Tunes and scores both.

    Args:
      data: pairs of train, valid and test, each int64 [n, 2] of users and items from 0.
      max_users: of valid that settings are chosen by; more are drawn from.
    """
    users, items = (int(max(each[:, i].max() for each in data.values())) + 1 for i in (0, 1))
    both = np.concatenate([data["train"], data["valid"]])
    parts = {"train": data["train"], "valid": data["valid"], "both": both, "test": data["test"]}
    lists = {name: Lists.of(pairs[:, 0], pairs[:, 1], users) for name, pairs in parts.items()}
    asked = {name: np.unique(parts[name][:, 0]) for name in ("valid", "test")}
    asked["valid"] = np.random.default_rng(0).permutation(asked["valid"])[:max_users]
    pairs = {name: Pairs.of(lists[name], items) for name in ("train", "both")}
    found: dict[str, Any] = {}
    kinds: list[tuple[str, Callable[[Any, Pairs], Weights], Any]]
    kinds = [("item-kNN", neighbours, KNN), ("EASE", ease, EASE)]
    for name, make, grid in kinds:
        tuned = {}
        for setting in grid:
            weights = make(setting, pairs["train"])
            tuned[setting] = recall_and_gain(
                weights.scores, lists["train"], lists["valid"], asked["valid"]
            )
        best = max(tuned, key=lambda setting: tuned[setting][0])
        weights = make(best, pairs["both"])
        recall, gain = recall_and_gain(weights.scores, lists["both"], lists["test"], asked["test"])
        found[name] = {"settings": best, "recall@20": [recall], "ndcg@20": [gain]}
        print(name, found[name], flush=True)
    return found
