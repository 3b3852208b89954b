"""Makes the row store of a group of tables on one shard."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from embedps.console.tf_logging import op_error_text
from embedps.errors import UsageError
from embedps.tables import admission, eviction, ops
from embedps.tables.byte_limits import ServerLimit
from embedps.tables.groups import TableGroup
from embedps.tables.optimizers import SGD


def make_store(
    group: TableGroup,
    *,
    shard: int,
    num_shards: int,
    device: str,
    container: str,
    name: str,
    trainable: bool,
    sweeps_itself: bool,
    server_limit: ServerLimit | None,
    keeps_evicted: bool,
) -> tf.Tensor:
    """Makes an empty store on a shard's device and returns its handle.

    Args:
      group: the tables.
      shard: the number of the shard.
      num_shards: of the group.
      device: the shard's.
      container: as of `EmbeddingCollection`.
      name: of the collection, unique among all clients.
      trainable: as of `EmbeddingCollection`.
      sweeps_itself: as of `EmbeddingCollection`.
      server_limit: as of `EmbeddingCollection`.
      keeps_evicted: as of `EmbeddingCollection`.

    Raises:
      UsageError: the store cannot be as declared.
    """
    optimizer = group.optimizer if trainable else SGD()
    initializers = [t.initializer for t in group.tables if t.initializer is not None]
    # Only training evicts; a follower gets the removals from the deltas.
    policies = [t.eviction if trainable else () for t in group.tables]
    limit = server_limit if trainable else None
    shared = {"order": limit.order} if limit else {}
    with tf.device(device), _declaration_errors():
        return ops.row_store(
            container=container,
            shared_name=f"{group.name}/shard-{shard}-of-{num_shards}/{name}",
            group=group.name,
            dim=group.dim,
            row_dtype=group.row_dtype,
            slot_dtype=group.slot_dtype,
            optimizer=optimizer.kind,
            **optimizer.settings(),
            tables=[t.name for t in group.tables],
            seeds=[t.seed for t in group.tables],
            initializers=[i.kind for i in initializers],
            initializer_lows=[i.low for i in initializers],
            initializer_highs=[i.high for i in initializers],
            # The hash spreads rows evenly, so each shard may hold its part of the capacity.
            max_rows=[-(-t.capacity // num_shards) for t in group.tables],
            absent_read_initial=[t.absent == "initial" for t in group.tables],
            **admission.store_attributes([t.admission for t in group.tables]),
            **eviction.store_attributes(policies, num_shards=num_shards, **shared),
            sweeps_itself=sweeps_itself,
            compact=not trainable,
            server_memory=f"server-memory/{name}",
            max_server_bytes=limit.max_bytes if limit else 0,
            keeps_evicted=keeps_evicted,
        )


@contextmanager
def _declaration_errors() -> Iterator[None]:
    """Turns TensorFlow's error for a store that cannot be as declared into ours."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        raise UsageError(op_error_text(error.message)) from error
