"""Records of checkpoint files in memory, before their tables have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedps import kernels
from embedps.tables.groups import TableGroup


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowChanges:
    """The ids of a table's rows that files set or remove, each once, in ascending order.

    Attributes:
      set: int64, of rows that are there then.
      removed: int64, of those that are not.
      differing: int64, of both, those that will be read as other bits than now. A delta since an
        older save also has rows that the table has already.
    """

    set: npt.NDArray[np.int64]
    removed: npt.NDArray[np.int64]
    differing: npt.NDArray[np.int64]


class StagedFiles:
    """Records of files that were read and checked: the last of each id. `apply` loads them.

    Attributes:
      records: how many the files have.
      handles: of the records by group and shard, for `EmbeddingCollection.lookup_staged`.
    """

    def __init__(
        self,
        groups: Sequence[TableGroup],
        devices: Sequence[str],
        stores: Sequence[Sequence[tf.Tensor]],
        handles: Sequence[Sequence[tf.Tensor]],
        records: int,
    ) -> None:
        """Takes the stores and what was staged for them, by group and shard."""
        self._groups, self._devices, self._stores = groups, devices, stores
        self.handles = handles
        self.records = records

    def changes(self, table: str) -> RowChanges:
        """Lists the ids of a table that have records; before `apply`."""
        listed: list[npt.NDArray[np.int64]] = []
        removed: list[npt.NDArray[np.bool_]] = []
        differs: list[npt.NDArray[np.bool_]] = []
        for g, group in enumerate(self._groups):
            for t, spec in enumerate(group.tables):
                if spec.name != table:
                    continue
                for shard, device in enumerate(self._devices):
                    with tf.device(device):
                        found = kernels.load().embedps_staged_ids(
                            self._stores[g][shard], self.handles[g][shard], table=t
                        )
                    listed.append(found.ids.numpy())
                    removed.append(found.removed.numpy())
                    differs.append(found.differs.numpy())
        ids, goes = np.concatenate(listed), np.concatenate(removed)
        return RowChanges(
            set=np.sort(ids[~goes]),
            removed=np.sort(ids[goes]),
            differing=np.sort(ids[np.concatenate(differs)]),
        )

    def show(self) -> None:
        """Makes lookups without insert read as if `apply` had run; not beside them.

        So the rows of all records change at once, and `apply` may run beside lookups.
        """
        self._on_each_store(kernels.load().embedps_show_rows)

    def apply(self) -> None:
        """Loads the records: rows overwrite, removals remove."""
        self._on_each_store(kernels.load().embedps_apply_rows)

    def _on_each_store(self, op: Callable[[tf.Tensor, tf.Tensor], object]) -> None:
        for stores, handles in zip(self._stores, self.handles, strict=True):
            for device, store, staged in zip(self._devices, stores, handles, strict=True):
                with tf.device(device):
                    op(store, staged)
