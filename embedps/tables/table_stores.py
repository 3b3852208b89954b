"""A model's embedding tables on their shards: what makes, counts, removes and forgets rows."""

import functools
import itertools
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedps import kernels
from embedps.errors import UsageError
from embedps.tables.byte_limits import ServerLimit
from embedps.tables.evicted_files import EvictedFiles
from embedps.tables.groups import group_tables
from embedps.tables.new_store import make_store, memory_of
from embedps.tables.policy_counts import AdmissionStats, read_admissions, read_evictions
from embedps.tables.row_files import RowFiles
from embedps.tables.specs import FeatureSpec, TableSpec
from embedps.tables.table_scan import TableScan, make_scan
from embedps.tables.table_stats import ShardStats, TableStats, add_shards, read_stats
from embedps.tables.table_use import ShardUse, read_use
from embedps.tables.tier import TierStats, read_tier
from embedps.tables.tiered import Tiered

T = TypeVar("T")


class TableStores:
    """Embedding tables in groups. A hash of the id partitions each group's rows over shards.

    Attributes:
      groups: the groups of tables.
      devices: each shard's device.
      learns: whether training makes rows and updates them.
      files: writes the rows to files, and loads them.
      server_limit: of the bytes of each server, if there is one.
      has_disk: whether the coldest rows of some tables go to disk.
      evicted_files: of the rows that go, if they are kept.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        *,
        devices: Sequence[str],
        container: str,
        trainable: bool = True,
        learns: bool = True,
        unchanged: Collection[str] = (),
        learning_rate: float | None = None,
        sweeps_itself: bool = True,
        server_limit: ServerLimit | None = None,
        memory: Tiered | None = None,
        keeps_evicted: bool = False,
        stores: Sequence[Sequence[tf.Tensor]] | None = None,
    ) -> None:
        """Creates empty stores. Drops what the container holds on these devices.

        Args:
          tables: the declared tables; those that no feature uses are omitted.
          features: the columns of ids and their tables.
          devices: each shard's device, such as "/job:ps/replica:0/task:0/device:CPU:0". A device
            may appear more than once.
          container: a name for the stores that only this collection uses on these devices.
          trainable: keep optimizer slots. Otherwise rows can only be loaded and looked up, and
            there is little room for more of them.
          learns: training makes rows and updates them. Otherwise it leaves them as they are, and
            `combine` gives them no gradient.
          unchanged: tables of which training makes rows, but never updates them.
          learning_rate: the rate of a step whose tables that bring one learn by it as it is. By
            another rate of a step, theirs changes in proportion. None: all have the step's.
          sweeps_itself: a thread of each shard evicts by age and norm; otherwise `sweep` does.
          server_limit: of the bytes of each server, if there is one.
          memory: of each server, if its coldest rows go to disk; not beside `server_limit`. Tables
            with a memory of their own have that, where they are trained.
          keeps_evicted: rows that go can be written to files.
          stores: those of another client, by group and shard: then none is made, and none dropped.

        Raises:
          UsageError: the declaration is inconsistent, or there are no devices.
        """
        if not devices:
            raise UsageError("an embedding collection must have at least one shard but got none")
        self.groups = group_tables(tables, features)
        self.devices = tuple(devices)
        if server_limit is not None:
            server_limit.check(self.groups, self.devices, keeps_evicted=keeps_evicted)
        self.container = container
        self.trainable = trainable
        self.learns = learns
        self._unchanged = unchanged
        self._base_rate = learning_rate
        self._step = 0  # the last that `thaw` was told
        self.server_limit = server_limit
        self.has_disk = any(memory_of(g, memory, trainable=trainable) for g in self.groups)
        self._make_store = functools.partial(
            make_store,
            num_shards=self.num_shards,
            container=container,
            trainable=trainable,
            sweeps_itself=sweeps_itself,
            server_limit=server_limit,
            memory=memory,
            keeps_evicted=keeps_evicted,
        )
        if stores is None:
            self.drop()
            shards = range(self.num_shards)
            stores = list(zip(*self._new_stores(shards), strict=True))
        self._stores = [list(of_group) for of_group in stores]  # who shares it sees what replaces
        self.files = RowFiles(
            self.groups, self._stores, devices=self.devices, optimizer_slots=trainable
        )
        self._hold_sweeps(True, [g.frozen_steps > 0 for g in self.groups])
        self.evicted_files = (
            EvictedFiles(self.groups, self._stores, devices=self.devices) if keeps_evicted else None
        )

    @property
    def stores(self) -> Sequence[Sequence[tf.Tensor]]:
        """The stores' handles, by group and shard."""
        return self._stores

    @property
    def num_shards(self) -> int:
        """The number of shards of each group."""
        return len(self.devices)

    @property
    def tables(self) -> list[TableSpec]:
        """The tables in use, by group."""
        return [t for group in self.groups for t in group.tables]

    def drop(self) -> None:
        """Frees the stores. The collection cannot be used afterwards."""
        for device in dict.fromkeys(self.devices):
            with tf.device(device):
                kernels.load().embedps_drop_stores(container=self.container)

    def replace_shards(self, shards: Sequence[int]) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Makes empty stores for shards whose server began anew.

        Returns:
          The old and the new handle of each store. Traced functions hold the old ones.
        """
        replaced = []
        for shard, stores in zip(shards, self._new_stores(shards), strict=True):
            for g, store in enumerate(stores):
                replaced.append((self._stores[g][shard], store))
                self._stores[g][shard] = store
                if self._step < self.groups[g].frozen_steps:
                    with tf.device(self.devices[shard]):
                        kernels.load().embedps_hold_sweeps(store, held=True)
        return replaced

    def _new_stores(self, shards: Iterable[int]) -> list[list[tf.Tensor]]:
        """Makes empty stores: of each shard those of all groups."""
        # A new name: a unit that an earlier client left running must not find the stores.
        name = uuid.uuid4().hex
        return [
            [
                self._make_store(group, shard=shard, device=self.devices[shard], name=name)
                for group in self.groups
            ]
            for shard in shards
        ]

    def sweep(self) -> None:
        """Removes now the rows that policies of age and norm say; a thread of each shard does too.

        Returns once all shards have looked at all their rows.
        """
        for group, stores in zip(self.groups, self._stores, strict=True):
            if group.frozen_steps <= self._step:
                self._on_stores(stores, lambda store: kernels.load().embedps_sweep(store))

    def hold_sweeps(self, held: bool) -> None:
        """Holds the shards' own sweeps, or lets them go on where they were.

        Returns once no row goes any more by age or norm. Those of frozen tables stay held.
        """
        self._hold_sweeps(held, [g.frozen_steps <= self._step for g in self.groups])

    def thaw(self, step: int) -> None:
        """Lets the sweeps of tables go on whose frozen steps are over."""
        before, self._step = self._step, step
        self._hold_sweeps(False, [before < g.frozen_steps <= step for g in self.groups])

    def eviction_stats(self) -> dict[str, dict[str, int]]:
        """Counts rows that went over all shards, by table and cause: age, norm, limit and hand."""
        return read_evictions(self.groups, self._stores, self.devices)

    def tier_stats(self) -> TierStats:
        """Counts rows on disk over all shards."""
        return read_tier(self.groups, self._stores, self.devices)

    def clear(self) -> None:
        """Removes every row."""
        self.clear_shards(range(self.num_shards))

    def clear_shards(self, shards: Iterable[int]) -> None:
        """Removes every row of some shards."""
        for shard in shards:
            with tf.device(self.devices[shard]):
                for stores in self._stores:
                    kernels.load().embedps_clear(stores[shard])

    def mark_clean(self) -> dict[tuple[str, int], int]:
        """Forgets which rows were touched, for instance after a restore.

        Returns:
          By (group, shard) the cut that the next delta must be since.
        """
        return self.mark_shards_clean(range(self.num_shards))

    def mark_shards_clean(self, shards: Iterable[int]) -> dict[tuple[str, int], int]:
        """Does what `mark_clean` does for some shards."""
        cuts = {}
        for shard in shards:
            for group, stores in zip(self.groups, self._stores, strict=True):
                with tf.device(self.devices[shard]):
                    cuts[group.name, shard] = int(kernels.load().embedps_mark_clean(stores[shard]))
        return cuts

    def stop_copies(self) -> None:
        """Makes the copies that are being written fail."""
        self._on_each_store(lambda store: kernels.load().embedps_stop_copies(store))

    def evict(self, table: str, *, before_step: int, max_frequency: int) -> int:
        """Removes a table's rows of which the last update is old and the updates are few.

        Args:
          before_step: removes rows that were last updated before this step,
          max_frequency: and that have fewer updates than this.

        Returns:
          How many rows were removed.
        """
        removed = self._on_each_shard(
            table,
            lambda store, index: kernels.load().embedps_evict(
                store, before_step, max_frequency, table=index
            ),
        )
        return sum(map(int, removed))

    def ids(self, table: str) -> npt.NDArray[np.int64]:
        """Lists the ids of a table's rows, in no order."""
        found = self._on_each_shard(
            table, lambda store, index: kernels.load().embedps_row_ids(store, table=index)
        )
        return np.concatenate([each.numpy() for each in found])

    def set_oldest_steps(self, steps: Mapping[str, int]) -> None:
        """Sets, by table, the step before which rows are too old by their event time."""
        for group, stores in zip(self.groups, self._stores, strict=True):
            for index, spec in enumerate(group.tables):
                if spec.name not in steps:
                    continue
                for shard, store in enumerate(stores):
                    with tf.device(self.devices[shard]):
                        kernels.load().embedps_set_oldest_step(
                            store, np.int64(steps[spec.name]), table=index
                        )

    def shard_stats(self) -> list[ShardStats]:
        """Counts rows and memory of each shard."""
        return read_stats(self.groups, self._stores, self.devices)

    def stats(self) -> TableStats:
        """Counts rows and memory over all shards."""
        return add_shards(self.shard_stats())

    def use(self) -> list[ShardUse]:
        """Counts what each shard's tables hold and what they are asked for."""
        return read_use(self.groups, self._stores, self.devices)

    def make_scan(self) -> Callable[[], dict[str, TableScan]]:
        """Makes a function that walks over all rows: see `table_scan.make_scan`."""
        return make_scan(self.groups, self._stores, self.devices)

    def admission_stats(self) -> dict[str, AdmissionStats]:
        """Counts, by table, what admission decided over all shards."""
        return read_admissions(self.groups, self._stores, self.devices)

    def _on_each_shard(self, table: str, call: Callable[[tf.Tensor, int], T]) -> list[T]:
        """Calls with a table's store and its index there, on each shard."""
        for group, stores in zip(self.groups, self._stores, strict=True):
            for index, spec in enumerate(group.tables):
                if spec.name == table:
                    results = []
                    for shard, store in enumerate(stores):
                        with tf.device(self.devices[shard]):
                            results.append(call(store, index))
                    return results
        raise UsageError(
            f"there is no table {table!r}: the tables are {[t.name for t in self.tables]}"
        )

    def _hold_sweeps(self, held: bool, chosen: Sequence[bool]) -> None:
        for stores in itertools.compress(self._stores, chosen):
            self._on_stores(
                stores, lambda store: kernels.load().embedps_hold_sweeps(store, held=held)
            )

    def _on_each_store(self, call: Callable[[tf.Tensor], T]) -> list[T]:
        return [result for stores in self._stores for result in self._on_stores(stores, call)]

    def _on_stores(self, stores: Sequence[tf.Tensor], call: Callable[[tf.Tensor], T]) -> list[T]:
        """Calls with the stores of a group."""
        results = []
        for shard, store in enumerate(stores):
            with tf.device(self.devices[shard]):
                results.append(call(store))
        return results
