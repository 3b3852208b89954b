"""Items' vectors in memory, and the exact search among them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedps import kernels
from embedps.serving.server.tensor_values import Array

NO_ITEM: Final = -1  # kernels/retrieval/item_index.h
NO_SCORE: Final = float(np.finfo(np.float32).min)

Ids = npt.NDArray[np.int64]


class ItemIndex:
    """Vectors by id. An index never changes: `changed` makes another, which shares what stays.

    Attributes:
      dim: of the vectors.
      num_items: how many there are.
      num_bytes: of the memory that it holds, alone or together with other indexes.
    """

    def __init__(self, dim: int, *, tensor: tf.Tensor | None = None) -> None:
        """Makes an index without items.

        Args:
          dim: of the vectors.
          tensor: holds the items of another index.
        """
        self._ops = kernels.load()
        self.dim = dim
        self._tensor = self._ops.embedps_no_items(dim=dim) if tensor is None else tensor
        items, num_bytes = self._ops.embedps_items_size(self._tensor)
        self.num_items, self.num_bytes = int(items), int(num_bytes)

    def changed(self, ids: Ids, vectors: Any, removed: Ids) -> ItemIndex:
        """Makes an index without some items, and with others.

        Args:
          ids: of items to add or replace.
          vectors: theirs, float32 [items, dim].
          removed: ids of items to remove before.
        """
        tensor = self._ops.embedps_change_items(
            self._tensor, tf.constant(ids, tf.int64), vectors, tf.constant(removed, tf.int64)
        )
        return ItemIndex(self.dim, tensor=tensor)

    def read(self, ids: Ids) -> npt.NDArray[np.float32]:
        """Reads vectors, [ids, dim]; zeros where there is no item."""
        vectors: npt.NDArray[np.float32] = self._ops.embedps_read_items(self._tensor, ids).numpy()
        return vectors

    def search(
        self,
        queries: tf.Tensor,
        *,
        k: int,
        seen: tuple[Array, Array],
        allowed: tuple[Array, Array],
        is_limited: Array,
    ) -> tuple[Array, Ids]:
        """Finds the items of the highest dot products; of equal ones, the smaller id is first.

        A score is the sum of the products in order of the dimensions, by fused multiply-adds. So it
        depends on nothing but the two vectors. TensorFlow's product of 16 queries or more gives the
        same bits; that of a few sums in another order.

        Args:
          queries: float32 [queries, dim].
          k: how many to find.
          seen: ids to leave out, a list per query: all ids, and the lists' lengths.
          allowed: ids of which to find the best, in the same form.
          is_limited: bool [queries], whether a query's list of `allowed` counts.

        Returns:
          Scores and ids [queries, k], the best first. Where there is no item, they are NO_SCORE and
          NO_ITEM.
        """
        scores, ids = self._ops.embedps_search_items(
            self._tensor, queries, seen[0], _splits(seen[1]), allowed[0], _splits(allowed[1]),
            is_limited, k=k,
        )  # fmt: skip
        return scores.numpy(), ids.numpy()


def _splits(lengths: Array) -> Ids:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
