"""An inverted file (IVF) of items by faiss: it finds candidates, whose scores are then exact."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from embedps.serving.server.item_index import Ids, ItemIndex

SAMPLE_QUERIES: Final = 256
_TRAIN_PER_LIST = 64

Floats = npt.NDArray[np.float32]


def is_installed() -> bool:
    """Tells whether faiss is there."""
    return importlib.util.find_spec("faiss") is not None


class IvfIndex:
    """Items in lists around centers; a search looks into the lists nearest to the query.

    Attributes:
      recall: which share of the exact best items it found for the sample.
      num_items: when it was built.
      num_lists, num_probes: how many lists there are, and into how many a search looks.
    """

    def __init__(
        self, index: ItemIndex, keys: Ids, queries: Floats, *, k: int, recall: float
    ) -> None:
        """Builds it, and tunes how many lists a search looks into.

        Args:
          index: the items' vectors.
          keys: of the items.
          queries: a sample of queries, float32 [queries, dim].
          k: how many items they ask for.
          recall: which share of the exact best items to find, at least.
        """
        import faiss

        began = time.monotonic()
        self._keys, vectors = keys, index.read(keys)
        self.num_items = len(keys)
        self.num_lists = max(1, math.isqrt(len(keys)))
        self._lists: Any = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(index.dim), index.dim, self.num_lists, faiss.METRIC_INNER_PRODUCT
        )
        most = min(len(keys), _TRAIN_PER_LIST * self.num_lists)
        sample = np.random.default_rng(0).choice(len(keys), most, replace=False)
        self._lists.train(vectors[sample])
        self._lists.add(vectors)
        exact = _exact(index, queries, k)
        self.num_probes, self.recall = self._tune(queries, exact, recall)
        self._secs = time.monotonic() - began

    def __str__(self) -> str:
        return (
            f"IVF of {self.num_items} items: {self.num_lists} lists, {self.num_probes} probes, "
            f"recall {self.recall:.4f} of {SAMPLE_QUERIES} queries, built in {self._secs:.1f} s"
        )

    def candidates(self, queries: Floats, k: int) -> list[Ids]:
        """Finds about k good items of each query, by their key."""
        self._lists.nprobe = self.num_probes
        _, places = self._lists.search(queries, min(k, self.num_items))
        return [self._keys[row[row >= 0]] for row in places]

    def _tune(self, queries: Floats, exact: Sequence[Ids], wanted: float) -> tuple[int, float]:
        """Finds the fewest probes that reach the recall, and the recall."""

        def recall(probes: int) -> float:
            self.num_probes = probes
            found = self.candidates(queries, max(map(len, exact)))
            shares = [
                np.isin(want, got).mean()
                for want, got in zip(exact, found, strict=True)
                if len(want)
            ]
            return float(np.mean(shares)) if shares else 1.0

        few, many = 0, 1
        reached = recall(many)
        while reached < wanted and many < self.num_lists:
            few, many = many, min(2 * many, self.num_lists)
            reached = recall(many)
        while many - few > max(1, many // 16):
            middle = (few + many) // 2
            at_middle = recall(middle)
            if at_middle >= wanted:
                many, reached = middle, at_middle
            else:
                few = middle
        return many, reached


def _exact(index: ItemIndex, queries: Floats, k: int) -> list[Ids]:
    none = (np.zeros(0, np.int64), np.zeros(len(queries), np.int64))
    limited = np.zeros(len(queries), np.bool_)
    scores, keys = index.search(queries, k=k, seen=none, allowed=none, is_limited=limited)
    least = np.finfo(np.float32).min
    return [row[values > least] for row, values in zip(keys, scores, strict=True)]
