"""Files of the rows that a collection evicts; each shard writes its own beside training."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from embedps import kernels
from embedps.tables.groups import TableGroup


class EvictedRows(NamedTuple):
    """What became of evicted rows.

    Attributes:
      rows: in files.
      lost: that could not be written.
      bytes: of the files.
      errors: why they could not.
    """

    rows: int = 0
    lost: int = 0
    bytes: int = 0
    errors: tuple[str, ...] = ()


class EvictedFiles:
    """Tells the shards of a collection where evicted rows go."""

    def __init__(
        self,
        groups: Sequence[TableGroup],
        stores: Sequence[Sequence[tf.Tensor]],
        *,
        devices: Sequence[str],
    ) -> None:
        """Has no files yet: rows that go are dropped.

        Args:
          stores: by group and shard; they keep evicted rows.
          devices: each shard's device.
        """
        self._groups, self._stores, self._devices = groups, stores, devices

    def next_files(self, path_of: Callable[[str, int, int], str]) -> EvictedRows:
        """Finishes the files of the rows that went until now, and begins others.

        A file that cannot be written loses its rows; training goes on. A shard that has evicted
        nothing writes no file.

        Args:
          path_of: gives the path of the next file of a group, a shard and the number of shards.

        Returns:
          What became of the rows since the last call.
        """
        total = EvictedRows()
        n = len(self._devices)
        for group, stores in zip(self._groups, self._stores, strict=True):
            for shard, store in enumerate(stores):
                with tf.device(self._devices[shard]):
                    made = kernels.load().embedps_next_evicted_file(
                        store, path_of(group.name, shard, n)
                    )
                rows, lost, size = made.info.numpy().tolist()
                error = made.error.numpy().decode()
                total = EvictedRows(
                    total.rows + rows,
                    total.lost + lost,
                    total.bytes + size,
                    (*total.errors, *([error] if error else [])),
                )
        return total
