"""Names a table's shard that holds more rows than chance explains: its ids may be chosen for it."""

from __future__ import annotations

import math
from collections.abc import Mapping

_LEAST_TIMES = 1.5  # an even share; less costs a server little
_LEAST_NATS = 32.0  # 8 standard deviations, squared and halved


def skewed_shard(rows: Mapping[int, int], num_shards: int) -> int | None:
    """Finds the fullest shard, if ids that were not chosen for it would not fill it so.

    A hash deals ids to shards, so a shard's rows are binomial. By Chernoff, a shard that should
    have the part p of n rows has the part q or more with a probability of exp(-n KL(q, p)) at most:
    of exp(-32) where it is named. For many rows that is 8 standard deviations; it holds for few.

    Args:
      rows: of a table, by shard; a shard without rows may be absent.
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
    return fullest if share > _LEAST_TIMES * even and total * nats > _LEAST_NATS else None


def skew_text(table: str, rows: Mapping[int, int], num_shards: int) -> str | None:
    """Names the shard that `skewed_shard` finds, in one line; None if there is none."""
    shard = skewed_shard(rows, num_shards)
    if shard is None:
        return None
    share = rows[shard] / sum(rows.values())
    return (
        f"table {table!r}: shard {shard} of {num_shards} has {share:.0%} of the rows "
        f"({share * num_shards:.1f} times an even share): ids may be chosen for it; "
        "see Ids in docs/security.md"
    )
