"""The search of a server among its items: exact, or by candidates of an IVF and exact scores."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from embedps.console.lines import say
from embedps.data.distinct_ids import sorted_distinct
from embedps.serving.server import ivf_index
from embedps.serving.server.item_index import NO_ITEM, Ids, ItemIndex
from embedps.serving.server.ivf_index import Floats, IvfIndex
from embedps.serving.server.ranking import Ranking
from embedps.serving.server.tensor_values import Array
from embedps.serving.server.top_k_format import TopKRequest

_MAX_SIDE = 0.1  # of the items; then the IVF is built anew


@dataclasses.dataclass(frozen=True)
class _State:
    keys: Ids  # of the items, in ascending order
    index: ItemIndex
    ivf: IvfIndex | None
    side: ItemIndex | None  # what was added or changed since the IVF was built


class ItemSearch:
    """Finds the best items. An IVF, if there are many, is built beside the searches."""

    def __init__(
        self, ranking: Ranking, keys: Ids, index: ItemIndex, queries: Callable[[], Floats]
    ) -> None:
        """Takes the items, and builds the IVF if there are many.

        Args:
          ranking: how items are ranked.
          keys: of the items, in ascending order.
          index: their vectors.
          queries: computes a sample of queries, to tune the IVF.
        """
        self._ranking, self._queries = ranking, queries
        self._state = _State(keys, index, None, None)
        self._built: IvfIndex | None = None
        self._thread: threading.Thread | None = None
        self._since: list[Ids] = []  # changed since the thread began
        self._is_stale = False  # what the thread builds
        self._can_build = True
        if self._wants_ivf():
            ivf = self._make(keys, index)
            self._state = _State(keys, index, ivf, None if ivf is None else ItemIndex(index.dim))

    @property
    def keys(self) -> Ids:
        """The keys of the items, in ascending order."""
        return self._state.keys

    @property
    def index(self) -> ItemIndex:
        """The items' vectors."""
        return self._state.index

    @property
    def recall(self) -> float:
        """Which share of the exact best items is found, by the sample; 1 if the search is exact."""
        return 1.0 if self._state.ivf is None else self._state.ivf.recall

    def replaced(self, keys: Ids, index: ItemIndex) -> _State:
        """Gives a state in which all items are other ones; `take` sets it.

        An IVF is built for it first.
        """
        self._is_stale = self._thread is not None
        ivf = None if self._state.ivf is None else self._make(keys, index)
        return _State(keys, index, ivf, None if ivf is None else ItemIndex(index.dim))

    def changed(self, keys: Ids, index: ItemIndex, changed: Ids, removed: Ids) -> _State:
        """Gives a state in which some items have changed; `take` sets it."""
        side = self._state.side
        if side is not None:
            side = side.changed(changed, index.read(changed), removed)
        if self._thread is not None:
            self._since.append(changed)
        return dataclasses.replace(self._state, keys=keys, index=index, side=side)

    def take(self, state: _State) -> _State:
        """Searches in a state from now on; gives the one before, which takes a while to free."""
        before, self._state = self._state, state
        return before

    def refresh(self) -> None:
        """Takes an IVF that was built, or begins to build one; not beside the other changes."""
        if self._thread is not None and not self._thread.is_alive():
            ivf, self._thread, self._built = self._built, None, None
            if ivf is not None and not self._is_stale:
                keys, index = self._state.keys, self._state.index
                ids = sorted_distinct(np.concatenate([np.zeros(0, np.int64), *self._since]))
                ids = ids[np.isin(ids, keys)]
                none = np.zeros(0, np.int64)
                side = ItemIndex(index.dim).changed(ids, index.read(ids), none)
                self._state = _State(keys, index, ivf, side)
        if self._thread is None and self._wants_ivf():
            self._since, self._is_stale = [], False
            self._thread = threading.Thread(
                target=self._build,
                args=(self._state.keys, self._state.index),
                name="ivf",
                daemon=True,
            )
            self._thread.start()

    def find(self, queries: tf.Tensor, request: TopKRequest, k: int) -> tuple[Array, Ids]:
        """Finds the best items of each query; see `ItemIndex.search`."""
        state = self._state
        allowed, limited = request.allowed, request.is_limited
        by_ivf = state.ivf is not None and not limited.all()
        if by_ivf:
            allowed, limited = self._candidates(state, queries, request, k), np.ones_like(limited)
        found = state.index.search(
            queries, k=k, seen=request.seen, allowed=allowed, is_limited=limited
        )
        if by_ivf and (found[1][~request.is_limited, -1] == NO_ITEM).any():
            # Too few candidates: the lists that were looked into have no more.
            return state.index.search(
                queries,
                k=k,
                seen=request.seen,
                allowed=request.allowed,
                is_limited=request.is_limited,
            )
        return found

    def close(self) -> None:
        """Waits until nothing is built any more."""
        if self._thread is not None:
            self._thread.join()

    def _candidates(
        self, state: _State, queries: tf.Tensor, request: TopKRequest, k: int
    ) -> tuple[Array, Array]:
        """Gives each query's list of `allowed`, or its candidates if it has none."""
        more = int(request.seen[1].max(initial=0))
        found = state.ivf.candidates(queries.numpy(), k + more) if state.ivf is not None else []
        nearby: list[Ids] = [np.zeros(0, np.int64)] * len(found)
        if state.side is not None and state.side.num_items:
            none = (np.zeros(0, np.int64), np.zeros(len(found), np.int64))
            limited = np.zeros(len(found), np.bool_)
            most = min(k, state.side.num_items)
            _, keys = state.side.search(
                queries, k=most, seen=request.seen, allowed=none, is_limited=limited
            )
            nearby = [row[row != NO_ITEM] for row in keys]
        own = np.split(request.allowed[0], np.cumsum(request.allowed[1])[:-1])
        lists = [
            given if is_limited else np.concatenate([found[row], nearby[row]])
            for row, (given, is_limited) in enumerate(zip(own, request.is_limited, strict=True))
        ]
        return np.concatenate(lists), np.array([len(each) for each in lists], np.int64)

    def _wants_ivf(self) -> bool:
        keys, ivf, side = self._state.keys, self._state.ivf, self._state.side
        if not self._can_build or len(keys) <= self._ranking.ivf_above:
            return False
        if not ivf_index.is_installed():
            self._can_build = False
            say(
                f"{len(keys)} items are more than --ivf-above {self._ranking.ivf_above}, but faiss "
                "is not installed, so each request compares all: pip install 'embedps[ivf]'",
            )
            return False
        return ivf is None or (side is not None and side.num_items > _MAX_SIDE * len(keys))

    def _build(self, keys: Ids, index: ItemIndex) -> None:
        self._built = self._make(keys, index)

    def _make(self, keys: Ids, index: ItemIndex) -> IvfIndex | None:
        ranking = self._ranking
        try:
            ivf = IvfIndex(index, keys, self._queries(), k=ranking.top_k, recall=ranking.ivf_recall)
        except Exception as error:  # requests are answered by the exact search
            self._can_build = False
            say(f"the IVF of {len(keys)} items cannot be built: {error}")
            return None
        say(str(ivf))
        return ivf
