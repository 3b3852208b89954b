"""Makes the row store of a group of tables on one shard."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from embedps.console.tf_logging import op_error_text
from embedps.errors import UsageError
from embedps.kernels.vector_function import find_function
from embedps.tables import ops
from embedps.tables.byte_limits import ServerLimit
from embedps.tables.groups import TableGroup
from embedps.tables.optimizers import SGD
from embedps.tables.specs import Initializer, TableSpec
from embedps.tables.tiered import Tiered


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
    memory: Tiered | None = None,
) -> tf.Tensor:
    """Makes an empty store on a shard's device and returns its handle.

    Args:
      shard: the number of the shard.
      device: the shard's.
      container: as of `EmbeddingCollection`.
      name: of the collection, unique among all clients.
      trainable: as of `EmbeddingCollection`.
      sweeps_itself: as of `EmbeddingCollection`.
      server_limit: as of `EmbeddingCollection`.
      keeps_evicted: as of `EmbeddingCollection`.
      memory: as of `EmbeddingCollection`.

    Raises:
      UsageError: the store cannot be as declared.
    """
    # Only training evicts; a follower gets the removals from the deltas.
    tables = [
        t if trainable else dataclasses.replace(t, optimizer=SGD(), eviction=())
        for t in group.tables
    ]
    if not group.trainable:
        tables = [dataclasses.replace(t, eviction=()) for t in tables]
    for table in tables if trainable else ():
        if table.initializer is not None and table.initializer.function:
            find_function(table.initializer.function)  # rather than in the first step
    limit = server_limit if trainable else None
    memory = memory_of(group, memory, trainable=trainable)
    shared = f"server-memory/{name}"
    if memory is not None:  # equal ones are one
        shared += f"/{memory.max_memory_bytes}/{memory.directory}"
    with tf.device(device), _declaration_errors():
        return ops.row_store(
            container=container,
            shared_name=f"{group.name}/shard-{shard}-of-{num_shards}/{name}",
            group=group.name,
            **attributes(tables, num_shards=num_shards, server_limit=limit, memory=memory),
            sweeps_itself=sweeps_itself,
            compact=not trainable,
            server_memory=shared,
            keeps_evicted=keeps_evicted,
        )


def memory_of(group: TableGroup, memory: Tiered | None, *, trainable: bool) -> Tiered | None:
    """Gives the memory of a group whose collection has this one; None if no row goes to disk.

    Who only reads may have another machine than who trains, so what it is given comes first.
    """
    if group.in_memory:
        return None
    return memory if memory and not trainable else group.memory or memory


def attributes(
    tables: Sequence[TableSpec],
    *,
    num_shards: int = 1,
    server_limit: ServerLimit | None = None,
    memory: Tiered | None = None,
) -> dict[str, Any]:
    """Makes the attributes of a store that say what it holds.

    Args:
      tables: of one group, so of equal dim, optimizer and dtypes.
      num_shards: of the group; each has its part of a table's limits.
      server_limit: of the bytes of all stores of the server.
      memory: of all stores of the server, if their coldest rows go to disk.
    """
    first = tables[0]
    return {
        "dim": first.embedding_dim,
        "row_dtype": first.row_dtype,
        "slot_dtype": first.slot_dtype,
        "optimizer": _lines({"optimizer": first.optimizer.kind, **first.optimizer.settings()}),
        "tables": [table.name for table in tables],
        "table_settings": [_lines(_settings(table, num_shards, server_limit)) for table in tables],
        "max_server_bytes": server_limit.max_bytes if server_limit else 0,
        "max_memory_bytes": memory.max_memory_bytes if memory else 0,
        "spill_dir": memory.directory if memory else "",
    }


def _settings(
    table: TableSpec, num_shards: int, server_limit: ServerLimit | None
) -> dict[str, Any]:
    """Gives what a shard's store is told of a table, as kernels/ops/store_ops.cc reads it."""
    initializer = table.initializer or Initializer()
    settings: dict[str, Any] = {
        "seed": table.seed,
        # The hash spreads rows evenly, so each shard may hold its part of the capacity.
        "max_rows": -(-table.capacity // num_shards),
        "absent_reads_initial": table.absent == "initial",
        "initializer": initializer.kind,
        "initializer.low": initializer.low,
        "initializer.high": initializer.high,
    }
    if initializer.function:
        settings["initializer.function"] = initializer.function
    if server_limit:
        settings["SizeLimit.order"] = server_limit.order  # unless the table has a limit of its own
    for policy in (table.admission, *(p.of_shard(num_shards) for p in table.eviction)):
        settings |= policy.store_settings() if policy else {}
    return settings


def _lines(settings: Mapping[str, Any]) -> str:
    """Writes settings as kernels/runtime/settings.h reads them: a bool as 0 or 1."""
    return "\n".join(
        f"{name}={int(value) if isinstance(value, bool) else value}"
        for name, value in settings.items()
    )


@contextmanager
def _declaration_errors() -> Iterator[None]:
    """Turns TensorFlow's error for a store that cannot be as declared into ours."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        raise UsageError(op_error_text(error.message)) from error
