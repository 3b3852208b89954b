"""Which ids tables know: those of rows that training has updated."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from embedps.errors import UsageError
from embedps.tables import ops
from embedps.tables.collection import EmbeddingCollection

# No table has a row of all of them, so the least of their rates is that of an absent id.
_PROBES = np.array([np.iinfo(np.int64).min + 0x9E37_79B9_7F4A * i for i in range(1, 9)], np.int64)


def update_rates(
    collection: EmbeddingCollection, table: str, ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads how often rows are updated, as lookups read the rows.

    Args:
      collection: its shards in this process or on servers.
      table: of the rows.
      ids: int64 [n], any order, repeats allowed.

    Returns:
      The share of steps that update each id's row, float32 [n]; and bool [n], whether any has.

    Raises:
      UsageError: there is no such table.
    """
    of_group = [[spec.name for spec in group.tables] for group in collection.groups]
    at = next((i for i, names in enumerate(of_group) if table in names), -1)
    if at < 0:
        raise UsageError(f"there is no table {table!r}: the tables are {of_group}")
    names, index = of_group[at], of_group[at].index(table)
    routed = ops.route(
        [ids], feature_tables=[index], tables=names, num_shards=collection.num_shards
    )
    rates, known = [], []
    for shard, device in enumerate(collection.devices):
        with tf.device(device):
            asked = tf.concat([routed.shard_ids[shard], tf.constant(_PROBES)], axis=0)
            size = tf.size(asked)
            splits = tf.stack([0 * size] * (index + 1) + [size] * (len(names) - index))
            found = collection.rates_of_shard(at, shard, asked, splits)
        rates.append(found[: -len(_PROBES)])
        known.append(rates[-1] > tf.reduce_min(found[-len(_PROBES) :]))
    (positions,) = routed.positions
    return tuple(tf.gather(tf.concat(each, axis=0), positions) for each in (rates, known))
