"""What a lookup gives, for the combination of its rows and for their update."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import tensorflow as tf

from embedps.tables import ops


class ShardRows(NamedTuple):
    """Holds rows of one group on one shard.

    Attributes:
      rows: float32 [n, dim].
      rates: as in a `LookupResult`; None if no feature of the group asks for them.
      asked: what was asked for, with `absent` if that was counted.
    """

    rows: tf.Tensor
    rates: tf.Tensor | None
    asked: ops.RowPart


class LookupResult(NamedTuple):
    """The result of a lookup, for `combine` and `update`. Each list has one entry per group.

    Attributes:
      rows: per shard float32 [n, dim]. Take gradients with respect to these.
      routed: the ids that each shard was asked for, and the position of each id's row.
      row_splits: by feature int64 [batch + 1], or empty if every example has one id. It has the
        features that were looked up, in the group's order.
      rates: per shard float32 [n], the share of steps that update each row; no shards if no feature
        of the group asks for them.
      asked: per shard what it was asked for, on its device. It has `absent` if a table of the group
        has an admission, and the lookup is of a training step.
    """

    rows: list[list[tf.Tensor]]
    routed: list[ops.RoutedIds]
    row_splits: list[dict[str, tf.Tensor]]
    rates: list[list[tf.Tensor]]
    asked: list[list[ops.RowPart]]

    def add(self, shards: Sequence[ShardRows]) -> None:
        """Adds the rows of the next group."""
        self.rows.append([each.rows for each in shards])
        self.rates.append([each.rates for each in shards if each.rates is not None])
        self.asked.append([each.asked for each in shards])

    def parts(
        self, gradients: Sequence[Sequence[tf.Tensor | None]]
    ) -> dict[tuple[int, int], ops.RowPart]:
        """Gives, by group and shard, the rows that have gradients, in the structure of `rows`."""
        return {
            (g, shard): self.asked[g][shard]._replace(gradients=gradient)
            for g, of_group in enumerate(gradients)
            for shard, gradient in enumerate(of_group)
            if gradient is not None
        }

    def learning(self, features: Collection[str] | None) -> dict[tuple[int, int], tf.Tensor | None]:
        """Tells which rows learn if only some features do.

        Args:
          features: those that learn; None is all.

        Returns:
          By group and shard bool [n], or None if all its rows learn; nothing if none does.
        """
        found: dict[tuple[int, int], tf.Tensor | None] = {}
        for g, (routed, names) in enumerate(zip(self.routed, self.row_splits, strict=True)):
            learns = [features is None or name in features for name in names]
            if any(learns):
                rows = [None] * len(self.rows[g]) if all(learns) else _rows_of(routed, learns)
                found |= {(g, shard): each for shard, each in enumerate(rows)}
        return found


def _rows_of(routed: ops.RoutedIds, chosen: Sequence[bool]) -> list[tf.Tensor]:
    """Tells which rows the chosen features look up: bool [n] per shard."""
    sizes = [tf.size(ids) for ids in routed.shard_ids]
    shown = [each for each, is_chosen in zip(routed.positions, chosen, strict=True) if is_chosen]
    at = tf.concat([tf.zeros([0], tf.int32), *shown], axis=0)
    times = tf.scatter_nd(at[:, None], tf.ones_like(at), [tf.add_n(sizes)])
    return list(tf.split(times > 0, sizes))
