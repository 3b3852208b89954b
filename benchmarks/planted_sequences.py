"""Makes click logs of users with histories, whose next items follow a planted taste.

Items are of kinds, and some of a kind are more popular. A user has a few favorite kinds. Half of
the items are of the kind that follows the last item's kind, the same for all users; the others are
of a favorite kind. So the order of a history matters, and so does the user.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from embedps.data.dataset_metadata import LabelColumn

KINDS, FAVORITES, LENGTH, LATEST, STRIDE = 50, 3, 60, 50, 4
NOISE = 0.5
"""Of the seconds that an item is looked at: the least error of a prediction."""

CLICK, SECONDS = LabelColumn(name="click"), LabelColumn(name="seconds", kind="number")

_LIST = pa.list_(pa.field("element", pa.int64(), nullable=False))
_TYPES = {"click": pa.float32(), "seconds": pa.float32(), "user": pa.int64(), "item": pa.int64()}
_SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=False) for name, kind in (*_TYPES.items(), ("history", _LIST))]
)
Ids = npt.NDArray[np.int64]


class World:
    """Items, users and their sequences.

    Attributes:
      sequences: int64 [users, LENGTH], the items of each user.
    """

    def __init__(self, *, users: int, items: int, seed: int = 0) -> None:
        """Draws the items, then each user's sequence."""
        self._rng = rng = np.random.default_rng(seed)
        self._kind = rng.permutation(np.arange(items) % KINDS)
        popularity = rng.pareto(1.5, items) + 0.2
        self._share = popularity / np.bincount(self._kind, popularity)[self._kind]
        self._follower = np.roll(rng.permutation(KINDS), 1)
        self._quality = rng.normal(size=items)
        self._favorites = np.argsort(rng.random([users, KINDS]), axis=1)[:, :FAVORITES]
        self._by_kind = [np.flatnonzero(self._kind == k) for k in range(KINDS)]
        self._sums = [np.cumsum(self._share[each]) for each in self._by_kind]
        self.sequences = np.zeros([users, LENGTH], np.int64)
        last = rng.integers(0, items, users)
        for place in range(LENGTH):
            liked = self._favorites[np.arange(users), rng.integers(0, FAVORITES, users)]
            follows = rng.random(users) < 0.5
            last = self._draw(np.where(follows, self._follower[self._kind[last]], liked))
            self.sequences[:, place] = last

    def chances(self, user: int, last: int) -> npt.NDArray[np.float64]:
        """Gives each item's probability to be the next, float64 [items]."""
        kinds = np.zeros(KINDS)
        kinds[self._favorites[user]] = 0.5 / FAVORITES
        kinds[self._follower[self._kind[last]]] += 0.5
        return np.asarray(kinds[self._kind] * self._share)

    def clicks(self, users: Ids, places: Ids) -> tuple[pa.Table, npt.NDArray[np.float64]]:
        """Makes a row of each user and place: the item there, clicked, or any item, not clicked.

        Returns:
          The rows, and the probability of a click that best tells them apart.
        """
        is_click = self._rng.random(len(users)) < 0.5
        any_item = self._draw(self._rng.integers(0, KINDS, len(users)))
        items = np.where(is_click, self.sequences[users, places], any_item)
        last = self.sequences[users, places - 1]
        pairs = zip(users, last, items, strict=True)
        if_next = np.array([self.chances(user, before)[item] for user, before, item in pairs])
        best = if_next / (if_next + self._share[items] / KINDS)
        return self._rows(users, places, items, is_click.astype(np.float32)), best

    def next_items(self, users: Ids, places: Ids) -> pa.Table:
        """Makes a row of each user and place, with the item there."""
        items = self.sequences[users, places]
        made = self._rows(users, places, items, np.ones(len(users), np.float32))
        return made.drop_columns([SECONDS.name])

    def _draw(self, kinds: Ids) -> Ids:
        draws = self._rng.random(len(kinds))
        found = np.zeros(len(kinds), np.int64)
        for kind in range(KINDS):
            of = kinds == kind
            places = np.searchsorted(self._sums[kind], draws[of])
            found[of] = self._by_kind[kind][np.minimum(places, len(self._by_kind[kind]) - 1)]
        return found

    def _rows(
        self, users: Ids, places: Ids, items: Ids, clicks: npt.NDArray[np.float32]
    ) -> pa.Table:
        is_liked = (self._favorites[users] == self._kind[items][:, None]).any(axis=1)
        seconds = self._quality[items] + is_liked + NOISE * self._rng.normal(size=len(users))
        histories = [
            self.sequences[user, max(place - LATEST, 0) : place]
            for user, place in zip(users, places, strict=True)
        ]
        columns = [clicks, seconds.astype(np.float32), users, items]
        arrays = [pa.array(each) for each in columns] + [pa.array(histories, _LIST)]
        return pa.table(arrays, schema=_SCHEMA)


def places_of(world: World) -> dict[str, tuple[Ids, Ids]]:
    """Gives users and places of rows by split: "eval" has each user's last item."""
    users = len(world.sequences)
    places = np.arange(STRIDE, LENGTH - 1, STRIDE)
    order = np.random.default_rng(1).permutation(users * len(places))
    train = (np.repeat(np.arange(users), len(places))[order], np.tile(places, users)[order])
    return {"train": train, "eval": (np.arange(users), np.full(users, LENGTH - 1))}
