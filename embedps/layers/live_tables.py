"""Reads the tables that another program trains on parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.eager import context

from embedps import kernels
from embedps.errors import ClusterError, UsageError
from embedps.kernels.tasks import check_task, device_of
from embedps.layers.table_directory import published
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.specs import FeatureSpec, TableSpec

T = TypeVar("T")

_JOB = "reader"


def connect(servers: Sequence[str], *, client: str | None = None) -> LiveTables:
    """Connects to parameter servers, to read the tables that another program trains on them.

    That program, a stock one of a ParameterServerStrategy, goes on meanwhile.

    Args:
      servers: their addresses, such as TF_CONFIG's of "ps", in that order.
      client: the address of the program's chief, if several train tables of a name there.

    Raises:
      UsageError: this process is itself the client of a cluster, or reads another one.
      ClusterError: a server runs another version, or no such program has tables there.
    """
    cluster = tf.train.ClusterSpec({"ps": list(servers)})
    known = context.get_server_def()
    if known is None:
        kernels.load()
        tf.config.experimental_connect_to_cluster(cluster, job_name=_JOB)
    elif known.job_name != _JOB or list(known.cluster.job[0].tasks.values()) != list(servers):
        raise UsageError(
            "embedps.connect must be called in a process that is connected to no other servers, "
            f"but this one is {known.job_name} of a cluster: read in a process of its own"
        )
    return LiveTables(len(servers), client)


class LiveTables:
    """The tables as they are now. They can be read only: no row is made, counted or changed."""

    def __init__(self, num_servers: int, client: str | None) -> None:
        """Finds the tables; see `connect`."""
        tasks = [("ps", index) for index in range(num_servers)]
        self._devices = [device_of(task) for task in tasks]
        self._client = client
        for task in tasks:
            check_task(task)
        self._find()

    @property
    def tables(self) -> list[TableSpec]:
        """The tables that can be read."""
        return [
            next(t for t in found[0].tables if t.name == name)
            for name, found in self._collections.items()
        ]

    def lookup(self, table: str, ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Reads rows.

        Args:
          table: its name.
          ids: int64, of any shape.

        Returns:
          float32 [*shape, dim]. An id without a row reads as its table declares.

        Raises:
          UsageError: there is no such table, or several clients have one.
          ClusterError: the program that trained the table has ended.
        """
        asked = np.asarray(ids, np.int64)
        flat = tf.constant(asked.ravel())

        def read(collection: EmbeddingCollection) -> Any:
            found = collection.lookup({table: flat}, insert=False, partial=True)
            return collection.combine(found)[table].numpy()

        rows = self._read(table, read)
        return rows.reshape(*asked.shape, -1)  # type: ignore[no-any-return]

    def ids(self, table: str) -> npt.NDArray[np.int64]:
        """Lists the ids of a table's rows, in no order.

        Raises:
          UsageError: as `lookup`.
          ClusterError: as `lookup`.
        """
        return self._read(table, lambda collection: collection.ids(table))

    def _read(self, table: str, read: Callable[[EmbeddingCollection], T]) -> T:
        try:
            return read(self._collection(table))
        except tf.errors.NotFoundError:  # its client began anew
            self._find()
        try:
            return read(self._collection(table))
        except tf.errors.NotFoundError as error:
            raise ClusterError(
                f"table {table!r} must be on the servers to be read, but its program has ended: "
                "read its checkpoints, by embedps.load or embedps.follow"
            ) from error

    def _collection(self, table: str) -> EmbeddingCollection:
        found = self._collections.get(table, [])
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(
                f"table {table!r} must be of one client to be read, but these have one of this "
                f"name: {', '.join(c.container for c in found)}: give one, connect(..., client=)"
            )
        raise UsageError(f"there is no table {table!r}: the tables are {[*self._collections]}")

    def _find(self) -> None:
        self._collections: dict[str, list[EmbeddingCollection]] = {}
        for entry in published(self._devices[0]):
            if self._client not in (None, entry["client"]):
                continue
            # By group: what the directory leaves out, such as rates, divides groups too.
            for group, stores in zip(entry["tables"], entry["stores"], strict=True):
                tables = [TableSpec.from_config(table) for table in group]
                collection = EmbeddingCollection(
                    tables,
                    [FeatureSpec(name=table.name, table=table.name) for table in tables],
                    devices=self._devices[: len(stores)],
                    container=entry["client"],
                    learns=False,
                    stores=[[*map(_handle, self._devices, stores)]],
                )
                for table in tables:
                    self._collections.setdefault(table.name, []).append(collection)
        if not self._collections:
            of = "a program" if self._client is None else f"the program of {self._client}"
            raise ClusterError(
                f"{of} must train tables on the servers to be read, but none does: start it first, "
                "or read its checkpoints"
            )


def _handle(device: str, serialized: bytes) -> tf.Tensor:
    with tf.device(device):
        return tf.io.parse_tensor(serialized, tf.resource)
