"""A model's embedding tables on their shards, with the lookups and updates of a step."""

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
from embedps.tables import message_ops, ops
from embedps.tables.activations import Activation, Ids
from embedps.tables.batch_ids import flatten_ids, like_ids
from embedps.tables.byte_limits import ServerLimit
from embedps.tables.evicted_files import EvictedFiles
from embedps.tables.groups import group_tables
from embedps.tables.lookup_result import LookupResult, ShardRows
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


class EmbeddingCollection:
    """Embedding tables in groups. A hash of the id partitions each group's rows over shards.

    In a tf.function, a step issues one lookup and one update per group and shard, on the shard's
    device. Everything else runs on the caller's device.

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

    # ---- in a step ---------------------------------------------------------------------------

    def lookup(
        self,
        ids: Mapping[str, Ids],
        *,
        insert: bool,
        step: tf.Tensor | None = None,
        partial: bool = False,
    ) -> LookupResult:
        """Reads the rows of a batch, each distinct id once.

        Args:
          ids: by feature int64 [batch], or ragged int64 [batch, None] for a ragged feature.
          insert: create absent rows (training). An id that stays without a row reads as its table
            declares.
          step: the training step's number, int64 scalar in [0, 2^32); with `insert`, tables that
            have an admission need it.
          partial: leave out the features that `ids` lacks.

        Raises:
          UsageError: a feature is absent (if `partial`, all are), has another dtype or rank, or
            differs from its spec in being ragged.
        """
        insert = insert and self.learns
        result = self.route(ids, counts=insert, partial=partial)
        for g, routed in enumerate(result.routed):
            shards = []
            for shard, device in enumerate(self.devices if result.row_splits[g] else ()):
                asked = routed.request(shard)
                if device.startswith("/job:"):
                    asked = ops.RowPart(*message_ops.send(asked, device))
                with tf.device(device):
                    shards.append(self.lookup_shard(g, shard, asked, insert=insert, step=step))
            result.add(shards)
        return result

    def read_ahead(self, ids: Mapping[str, Ids]) -> None:
        """Begins to bring rows into memory that a `lookup` of the same ids will need."""
        for g, routed in enumerate(self.route(ids, counts=self.learns).routed):
            for shard, device in enumerate(self.devices):
                asked = routed.request(shard)
                with tf.device(device):
                    ops.read_ahead(self._stores[g][shard], asked.ids, asked.splits)

    def lookup_staged(
        self, ids: Mapping[str, Ids], staged: Sequence[Sequence[tf.Tensor]]
    ) -> LookupResult:
        """Reads rows as a partial `lookup` without insert would if staged files were applied.

        Args:
          ids: as in `lookup`.
          staged: `StagedFiles.handles`. Their stores must be in this process.
        """
        result = self.route(ids, partial=True)
        for g, routed in enumerate(result.routed):
            shards = []
            for shard, device in enumerate(self.devices if result.row_splits[g] else ()):
                asked = routed.request(shard)
                store = self._stores[g][shard]
                with tf.device(device):
                    rows = ops.lookup_staged(
                        store, staged[g][shard], asked.ids, asked.splits, dim=self.groups[g].dim
                    )
                    shards.append(ShardRows(rows, self._rates_asked(g, shard, asked), asked))
            result.add(shards)
        return result

    def route(
        self, ids: Mapping[str, Ids], *, counts: bool = False, partial: bool = False
    ) -> LookupResult:
        """Decides which shard to ask for which ids of a batch. The result has no rows or rates yet.

        A group without features in the result has nothing to ask: its lists are empty.

        Args:
          ids: as in `lookup`.
          counts: count the examples that show each id, for the tables that have an admission.
          partial: as in `lookup`.

        Raises:
          UsageError: as in `lookup`.
        """
        if partial and not any(f.name in ids for g in self.groups for f in g.features):
            names = [f.name for g in self.groups for f in g.features]
            raise UsageError(f"a lookup must have one of the features {names} but got {[*ids]}")
        result = LookupResult([], [], [], [], [])
        for group in self.groups:
            features = [f for f in group.features if not partial or f.name in ids]
            flat = {f.name: flatten_ids(f, ids) for f in features}
            result.routed.append(
                ops.route(
                    [values for values, _ in flat.values()],
                    feature_tables=group.table_indexes(features),
                    tables=[t.name for t in group.tables],
                    num_shards=self.num_shards,
                    row_splits=[splits for _, splits in flat.values()],
                    counted_tables=group.counted_tables if counts and self.learns else (),
                )
                if features
                else ops.RoutedIds([], [], [], [])
            )
            result.row_splits.append({name: splits for name, (_, splits) in flat.items()})
        return result

    def lookup_shard(
        self,
        group: int,
        shard: int,
        asked: ops.RowPart,
        *,
        insert: bool,
        step: tf.Tensor | None = None,
    ) -> ShardRows:
        """Reads rows of one shard. The current device must be the shard's.

        Rows whose `examples` were counted are looked up for a training step: see
        `ops.lookup_shown`.

        Raises:
          UsageError: examples were counted, and the step is None.
        """
        store, declared = self._stores[group][shard], self.groups[group]
        dim = declared.dim
        ids, splits, _, examples, _ = asked
        if examples is None:
            inserts = insert and self.learns and declared.trainable
            look = functools.partial(ops.lookup, store, ids, splits, dim=dim)
            if inserts and declared.frozen_steps:
                if step is None:
                    raise UsageError(
                        f"a training lookup of tables {[t.name for t in declared.tables]}, which "
                        "have frozen_steps, must have the step's number: pass lookup(..., step=...)"
                    )
                learns = step >= declared.frozen_steps
                rows = tf.cond(learns, lambda: look(insert=True), lambda: look(insert=False))
            else:
                rows = look(insert=inserts)
        elif step is None:
            named = [t.name for t in declared.tables if t.admission is not None]
            raise UsageError(
                f"a training lookup of tables {named}, which have an admission, must have the "
                "step's number: pass lookup(..., step=...)"
            )
        else:
            rows, absent = ops.lookup_shown(store, ids, splits, examples, dim=dim, step=step)
            asked = asked._replace(absent=absent)
        return ShardRows(rows, self._rates_asked(group, shard, asked), asked)

    def rates_of_shard(
        self, group: int, shard: int, ids: tf.Tensor, splits: tf.Tensor
    ) -> tf.Tensor:
        """Reads how often rows of one shard are updated, as `lookup_shard` reads the rows."""
        return ops.update_rates(self._stores[group][shard], ids, splits)

    def update_shard(
        self,
        group: int,
        shard: int,
        part: ops.RowPart,
        *,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        is_new: tf.Tensor | bool = True,
        learning: tf.Tensor | None = None,
    ) -> tf.Operation:
        """Applies gradients to rows of one shard. The current device must be the shard's.

        If `is_new`, a bool scalar, is false, the rows stay unchanged. If the part has `absent` ids,
        it first admits ids: so a step counts if and only if its gradients are applied. `learning`,
        bool [n], says which rows to update, by default those of all tables that learn.
        """
        if not self.groups[group].trainable:
            return tf.no_op()
        if frozen_steps := self.groups[group].frozen_steps:
            is_new = tf.logical_and(is_new, step >= frozen_steps)
        store = self._stores[group][shard]
        ids, splits, gradients, examples, absent = part
        admitted = []
        if absent is not None:
            admit = ops.admit(store, ids, splits, examples, absent, step=step, is_new=is_new)
            admitted = [] if tf.executing_eagerly() else [admit]
        if learning is None:
            learn = [t.name not in self._unchanged for t in self.groups[group].tables]
            learning = None if all(learn) else tf.repeat(learn, splits[1:] - splits[:-1])
        if learning is not None:
            ids, splits, gradients = ops.keep_rows(learning, ids, splits, gradients)
        with tf.control_dependencies(admitted):
            return ops.update(
                store,
                ids,
                splits,
                gradients,
                learning_rate=self._rate_of(group, learning_rate, step),
                step=step,
                is_new=is_new,
            )

    def _rate_of(self, group: int, learning_rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Gives a group's learning rate in a step that has this one."""
        own, base = self.groups[group].optimizer.learning_rate, self._base_rate
        if own is None or base is None or own == base:
            return learning_rate
        now = tf.cast(own(step), tf.float32) if callable(own) else own
        return now * (learning_rate / base) if base else tf.convert_to_tensor(now)

    def combine(self, result: LookupResult) -> dict[str, Activation]:
        """Combines rows into one vector per feature and example; differentiable in `result.rows`.

        Returns:
          By feature that was looked up float32 [batch, dim]. A ragged feature with combiner "none"
          has a row per id: ragged [batch, None, dim], or with a max_length dense [batch,
          max_length, dim], zeros after an example's last id. `activations.mask` tells which
          positions have an id. A feature's `rate_as` gives float32 of the ids' shape in the
            same way: the share of steps that update each id's row.
        """
        activations: dict[str, Activation] = {}
        for group, rows, routed, row_splits, rates, _ in zip(self.groups, *result, strict=True):
            features = [f for f in group.features if f.name in row_splits]
            if not features:
                continue
            lengths = [f.max_length or 0 for f in features]
            if not (self.learns and group.trainable):
                rows = [tf.stop_gradient(each) for each in rows]
            elif group.optimizer.clip_norm:
                rows = [_clipped(each, group.optimizer.clip_norm) for each in rows]
            combined = ops.combine(
                rows,
                routed.positions,
                [row_splits[f.name] for f in features],
                combiners=[f.combiner for f in features],
                feature_tables=group.table_indexes(features),
                lengths=lengths if any(lengths) else [],
            )
            for feature, value in zip(features, combined, strict=True):
                if feature.keeps_rows and feature.max_length is None:
                    value = tf.RaggedTensor.from_row_splits(
                        value, row_splits[feature.name], validate=False
                    )
                activations[feature.name] = value
            for feature, positions in zip(features, routed.positions, strict=True):
                if feature.rate_as is not None:
                    value = tf.gather(tf.concat(rates, axis=0), positions)
                    splits = row_splits[feature.name]
                    activations[feature.rate_as] = like_ids(feature, value, splits)
        return activations

    def update(
        self,
        result: LookupResult,
        gradients: Sequence[Sequence[tf.Tensor | None]],
        *,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        features: Collection[str] | None = None,
    ) -> list[tf.Operation]:
        """Applies gradients to the rows that were looked up.

        Args:
          result: what `lookup` returned.
          gradients: with respect to `result.rows`, in its structure; None where the loss does not
            depend on the rows.
          learning_rate: float32 scalar.
          step: int64 scalar in [0, 2^32), the rows' last step.
          features: those whose rows learn, by default all. Rows that only others look up stay as
            they are, whatever an optimizer does without a gradient.

        Returns:
          In a graph, the operations.
        """
        updates: list[tf.Operation] = []
        learning = result.learning(features)
        for at, part in result.parts(gradients).items():
            if at in learning:
                with tf.device(self.devices[at[1]]):
                    update = self.update_shard(
                        *at,
                        part,
                        learning_rate=learning_rate,
                        step=step,
                        learning=learning[at],
                    )
                updates.append(update)
        return updates

    # ---- outside steps -----------------------------------------------------------------------

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

    # ---- parts -------------------------------------------------------------------------------

    def _rates_asked(self, group: int, shard: int, asked: ops.RowPart) -> tf.Tensor | None:
        if not self.groups[group].gives_rates:
            return None
        return self.rates_of_shard(group, shard, asked.ids, asked.splits)

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


def _clipped(rows: tf.Tensor, norm: float) -> tf.Tensor:
    """Gives the rows; their gradients are scaled down to a norm."""

    @tf.custom_gradient
    def same(values: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return tf.identity(values), lambda gradient: tf.clip_by_norm(gradient, norm, axes=[1])

    return same(rows)
