"""Names a table's shard that holds more rows than chance explains: its ids may be chosen for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

_LEAST_TIMES = 1.5  # an even share; less costs a server little
_LEAST_NATS = 32.0  # 8 standard deviations, squared and halved


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardSkew:
    """A table's shard that has too many rows.

    Attributes:
      table: its name.
      shard: from 0.
      num_shards: of the table.
      share: of the table's rows that the shard has.
    """

    table: str
    shard: int
    num_shards: int
    share: float

    def text(self) -> str:
        """Says it in one line."""
        return (
            f"table {self.table!r}: shard {self.shard} of {self.num_shards} has "
            f"{self.share:.0%} of the rows ({self.share * self.num_shards:.1f} times an even "
            "share): ids may be chosen for it; see Ids in docs/security.md"
        )


def find_skew(table: str, rows: Mapping[int, int], num_shards: int) -> ShardSkew | None:
    """Finds the fullest shard, if ids that were not chosen for it would not fill it so.

    A hash deals ids to shards, so a shard's rows are binomial. By Chernoff, a shard that should
    have the part p of n rows has the part q or more with a probability of exp(-n KL(q, p)) at most:
    of exp(-32) where it is named. For many rows that is 8 standard deviations; it holds for few.

    Args:
      table: its name.
      rows: of it, by shard; a shard without rows may be absent.
      num_shards: how many there are.
    """
    total = sum(rows.values())
    if num_shards < 2 or not total:
        return None
    fullest = max(rows, key=rows.__getitem__)
    even, share = 1 / num_shards, rows[fullest] / total
    nats = share * math.log(share / even)
    if share < 1:
        nats += (1 - share) * math.log((1 - share) / (1 - even))
    if share <= _LEAST_TIMES * even or total * nats <= _LEAST_NATS:
        return None
    return ShardSkew(table=table, shard=fullest, num_shards=num_shards, share=share)
