"""The directory of the tables on a cluster's servers, by which other clients find them."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import uuid
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from embedps import kernels
from embedps.tables.collection import EmbeddingCollection

_ENTRIES = {"key_dtype": tf.int64, "value_dtype": tf.string}


def publish(collection: EmbeddingCollection, client: str) -> None:
    """Enters a collection, in place of an earlier one of its container.

    Args:
      collection: on servers; the first of them holds the directory.
      client: that trains it.
    """
    stores: list[list[str]] = []
    for of_group in collection.stores:
        stores.append([])
        for device, store in zip(collection.devices, of_group, strict=True):
            with tf.device(device):
                handle = tf.io.serialize_tensor(store).numpy()
            stores[-1].append(base64.b64encode(handle).decode())
    tables = [[table.to_json() for table in group.tables] for group in collection.groups]
    entry = {
        "client": client,
        "process": _process(),
        "container": collection.container,
        "tables": tables,
        "stores": stores,
    }
    with tf.device(collection.devices[0]):
        tf.raw_ops.LookupTableInsertV2(
            table_handle=_directory(),
            keys=tf.constant([_key(collection.container)], tf.int64),
            values=tf.constant([json.dumps(entry)]),
        )


def drop_earlier(devices: Sequence[str], client: str) -> None:
    """Drops the tables that earlier processes of a client left on these servers.

    Those that this process makes anew are dropped where they are made: a program may make fewer.
    """
    for entry in published(devices[0]):
        if entry["client"] == client and entry["process"] != _process():
            for device in devices:
                with tf.device(device):
                    for container in (entry["container"], steps_container(entry["container"])):
                        kernels.load().embedps_drop_stores(container=container)
            withdraw(devices[0], entry["container"])


def steps_container(container: str) -> str:
    """Names the container of the logs of steps beside that of the stores."""
    return f"{container}-steps"


def withdraw(device: str, container: str) -> None:
    """Removes what was published of a container, if its servers still answer."""
    with contextlib.suppress(tf.errors.OpError, AttributeError), tf.init_scope(), tf.device(device):
        tf.raw_ops.LookupTableRemoveV2(
            table_handle=_directory(), keys=tf.constant([_key(container)], tf.int64)
        )


def published(device: str) -> list[dict[str, Any]]:
    """Reads all entries of the directory of a first server.

    Returns:
      Of each: `client`, its `process`, `container`, `tables` as JSON by group, and `stores`, the
      handles by group and shard.
    """
    with tf.device(device):
        _, values = tf.raw_ops.LookupTableExportV2(
            table_handle=_directory(), Tkeys=tf.int64, Tvalues=tf.string
        )
    entries: list[dict[str, Any]] = [json.loads(value) for value in values.numpy()]
    for entry in entries:
        entry["stores"] = [list(map(base64.b64decode, each)) for each in entry["stores"]]
    return entries


@functools.cache
def _process() -> str:
    return uuid.uuid4().hex


def _directory() -> tf.Tensor:
    return tf.raw_ops.MutableHashTableV2(
        container="embedps-directory", shared_name="tables", **_ENTRIES
    )


def _key(container: str) -> int:
    return zlib.crc32(container.encode())
