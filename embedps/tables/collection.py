"""A model's embedding tables on their shards: a step's lookups and updates, and their counts."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf

from embedps import kernels
from embedps.errors import UsageError
from embedps.tables import ops
from embedps.tables.optimizers import SGD
from embedps.tables.plan import Group, make_plan
from embedps.tables.row_files import RowFiles
from embedps.tables.specs import FeatureSpec, TableSpec

T = TypeVar("T")
Ids: TypeAlias = tf.Tensor | tf.RaggedTensor


class LookupResult(NamedTuple):
    """What a lookup leaves for `combine` and `update`; each list has an entry a group.

    Attributes:
      rows: for each shard float32 [n, dim]: what a gradient is taken of.
      routed: the ids that were asked for, and where each one's row stands.
      row_splits: for each feature int64 [batch + 1], or empty where every example has one id.
    """

    rows: list[list[tf.Tensor]]
    routed: list[ops.RoutedIds]
    row_splits: list[list[tf.Tensor]]


class TableStats(NamedTuple):
    """Counts over all shards."""

    rows: dict[str, int]
    memory_bytes: int
    rejected_inserts: int
    skipped_updates: int


class EmbeddingCollection:
    """Tables stacked in groups, each group's rows partitioned over shards by a hash of the id.

    Used inside a tf.function, a step issues one lookup and one update a group and shard, on the
    shard's device; everything else runs where the caller is placed.

    Attributes:
      groups: how the tables are stacked.
      devices: each shard's.
      files: writes the rows to files, and loads them.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        *,
        devices: Sequence[str],
        container: str,
        trainable: bool = True,
    ) -> None:
        """Creates the stores, empty: whatever the container held on these devices is dropped.

        Args:
          tables: what is declared; tables no feature uses are left out.
          features: who looks up what.
          devices: each shard's device, such as "/job:ps/replica:0/task:0/device:CPU:0"; a device
            may be named more than once.
          container: a name for the stores, of this collection alone on these devices.
          trainable: keep optimizer slots; without, rows can be loaded and looked up only.

        Raises:
          UsageError: the declaration is not consistent, or there are no devices.
        """
        if not devices:
            raise UsageError("an embedding collection must have at least one shard but got none")
        self.groups = make_plan(tables, features)
        self.devices = tuple(devices)
        self.container = container
        self.trainable = trainable
        self._name = uuid.uuid4().hex
        self.drop()
        self._stores: list[list[tf.Tensor]] = [
            [self._make_store(group, shard) for shard in range(self.num_shards)]
            for group in self.groups
        ]
        self.files = RowFiles(
            self.groups, self._stores, devices=self.devices, optimizer_slots=trainable
        )

    @property
    def num_shards(self) -> int:
        """How many shards each group has."""
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

    # ---- in a step ---------------------------------------------------------------------------

    def lookup(self, ids: Mapping[str, Ids], *, insert: bool) -> LookupResult:
        """Reads the rows of a batch, each distinct id once.

        Args:
          ids: by feature int64 [batch], or ragged int64 [batch, None] for a ragged feature.
          insert: create absent rows (training); otherwise they read as zeros.

        Raises:
          UsageError: a feature is absent, of another dtype or rank, or ragged where its spec is
            not, or the other way round.
        """
        looked = self.route(ids)
        for g, routed in enumerate(looked.routed):
            rows = []
            for shard, device in enumerate(self.devices):
                # Whatever is sent to another task is a call of both: send one tensor.
                wanted = [routed.shard_ids[shard], routed.shard_splits[shard]]
                if device.startswith("/job:"):
                    specs = [tf.TensorSpec(w.shape, w.dtype) for w in wanted]
                    message = ops.pack(wanted)
                    with tf.device(device):
                        wanted = ops.unpack(message, specs)
                with tf.device(device):
                    rows.append(self.lookup_shard(g, shard, *wanted, insert=insert))
            looked.rows.append(rows)
        return looked

    def route(self, ids: Mapping[str, Ids]) -> LookupResult:
        """Says which ids a batch asks which shard for; there are no rows yet.

        Args:
          ids: as `lookup` takes them.

        Raises:
          UsageError: as `lookup`.
        """
        looked = LookupResult([], [], [])
        for group in self.groups:
            values, row_splits = [], []
            for feature in group.features:
                value, splits = _flatten(feature, ids)
                values.append(value)
                row_splits.append(splits)
            looked.routed.append(
                ops.route(
                    values,
                    feature_tables=group.feature_tables,
                    tables=[t.name for t in group.tables],
                    num_shards=self.num_shards,
                )
            )
            looked.row_splits.append(row_splits)
        return looked

    def lookup_shard(
        self, group: int, shard: int, ids: tf.Tensor, splits: tf.Tensor, *, insert: bool
    ) -> tf.Tensor:
        """Reads rows of one shard on the current device, which must be the shard's."""
        store, dim = self._stores[group][shard], self.groups[group].dim
        return ops.lookup(store, ids, splits, dim=dim, insert=insert)

    def update_shard(
        self,
        group: int,
        shard: int,
        ids: tf.Tensor,
        splits: tf.Tensor,
        gradients: tf.Tensor,
        *,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        is_new: tf.Tensor | bool = True,
    ) -> tf.Operation:
        """Applies gradients to rows of one shard on the current device, which must be its own.

        Where `is_new`, a bool scalar, is false, the rows stay as they are.
        """
        return ops.update(
            self._stores[group][shard],
            ids,
            splits,
            gradients,
            learning_rate=learning_rate,
            step=step,
            is_new=is_new,
        )

    def combine(self, looked: LookupResult) -> dict[str, tf.Tensor]:
        """One vector a feature and example; differentiable in `looked.rows`.

        Returns:
          By feature float32 [batch, dim].
        """
        embeddings: dict[str, tf.Tensor] = {}
        for group, rows, routed, row_splits in zip(
            self.groups, looked.rows, looked.routed, looked.row_splits, strict=True
        ):
            combined = ops.combine(
                rows,
                routed.positions,
                row_splits,
                combiners=[f.combiner for f in group.features],
                feature_tables=group.feature_tables,
            )
            for feature, value in zip(group.features, combined, strict=True):
                embeddings[feature.name] = value
        return embeddings

    def update(
        self,
        looked: LookupResult,
        gradients: Sequence[Sequence[tf.Tensor | None]],
        *,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
    ) -> None:
        """Applies gradients to the rows that were looked up.

        Args:
          looked: what `lookup` returned.
          gradients: of `looked.rows`, in its structure; None where the loss does not depend on
            them.
          learning_rate: float32 scalar.
          step: int64 scalar in [0, 2^32), the rows' last step.
        """
        for g, (routed, shard_gradients) in enumerate(zip(looked.routed, gradients, strict=True)):
            for shard, gradient in enumerate(shard_gradients):
                if gradient is None:
                    continue
                with tf.device(self.devices[shard]):
                    self.update_shard(
                        g,
                        shard,
                        routed.shard_ids[shard],
                        routed.shard_splits[shard],
                        gradient,
                        learning_rate=learning_rate,
                        step=step,
                    )

    # ---- outside steps -----------------------------------------------------------------------

    def clear(self) -> None:
        """Removes every row."""
        self._on_each_store(lambda store: kernels.load().embedps_clear(store))

    def mark_clean(self) -> dict[tuple[str, int], int]:
        """Forgets what was touched, as after a restore.

        Returns:
          By (group, shard) the cut to write the next delta since.
        """
        cuts = self._on_each_store(lambda store: int(kernels.load().embedps_mark_clean(store)))
        return dict(zip(self._names(), cuts, strict=True))

    def stop_copies(self) -> None:
        """Ends the copies that are being written, as failures."""
        self._on_each_store(lambda store: kernels.load().embedps_stop_copies(store))

    def evict(self, table: str, *, before_step: int, max_frequency: int) -> int:
        """Removes a table's rows last updated before a step and with fewer updates than a number.

        Returns:
          How many rows were removed.
        """
        for group, stores in zip(self.groups, self._stores, strict=True):
            for index, spec in enumerate(group.tables):
                if spec.name != table:
                    continue
                removed = 0
                for shard, store in enumerate(stores):
                    with tf.device(self.devices[shard]):
                        removed += int(
                            kernels.load().embedps_evict(
                                store, before_step, max_frequency, table=index
                            )
                        )
                return removed
        raise UsageError(
            f"there is no table {table!r}: the tables are {[t.name for t in self.tables]}"
        )

    def stats(self) -> TableStats:
        """Counts rows and memory over all shards."""
        rows = {t.name: 0 for t in self.tables}
        counters = np.zeros(3, np.int64)
        for group, stores in zip(self.groups, self._stores, strict=True):
            for shard, store in enumerate(stores):
                with tf.device(self.devices[shard]):
                    stats = kernels.load().embedps_stats(store)
                for table, count in zip(group.tables, stats.rows.numpy(), strict=True):
                    rows[table.name] += int(count)
                counters += stats.counters.numpy()
        return TableStats(rows, *(int(c) for c in counters))

    # ---- parts -------------------------------------------------------------------------------

    def _names(self) -> list[tuple[str, int]]:
        return [(group.name, i) for group in self.groups for i in range(self.num_shards)]

    def _on_each_store(self, call: Callable[[tf.Tensor], T]) -> list[T]:
        results = []
        for stores in self._stores:
            for shard, store in enumerate(stores):
                with tf.device(self.devices[shard]):
                    results.append(call(store))
        return results

    def _make_store(self, group: Group, shard: int) -> tf.Tensor:
        optimizer = group.optimizer if self.trainable else SGD()
        initializers = [t.initializer for t in group.tables if t.initializer is not None]
        with tf.device(self.devices[shard]):
            return ops.row_store(
                container=self.container,
                # Never found again by a unit that a client before this one left running.
                shared_name=f"{group.name}/shard-{shard}-of-{self.num_shards}/{self._name}",
                group=group.name,
                dim=group.dim,
                optimizer=optimizer.kind,
                **optimizer.settings(),
                tables=[t.name for t in group.tables],
                seeds=[t.seed for t in group.tables],
                initializers=[i.kind for i in initializers],
                initializer_lows=[i.low for i in initializers],
                initializer_highs=[i.high for i in initializers],
                # Rows are spread evenly, so each shard may hold its part of a table's capacity.
                max_rows=[-(-t.capacity // self.num_shards) for t in group.tables],
            )


def _flatten(feature: FeatureSpec, ids: Mapping[str, Ids]) -> tuple[tf.Tensor, tf.Tensor]:
    """A feature's ids and their row splits, empty where every example has one id."""
    if feature.name not in ids:
        raise UsageError(f"feature {feature.name!r} is not among the batch's: {sorted(ids)}")
    value = ids[feature.name]
    if isinstance(value, tf.RaggedTensor) != feature.ragged:
        raise UsageError(
            f"feature {feature.name!r} is declared with ragged={feature.ragged} but the batch has "
            f"a {'ragged' if isinstance(value, tf.RaggedTensor) else 'dense'} tensor"
        )
    if value.dtype != tf.int64:
        raise UsageError(f"feature {feature.name!r} must have int64 ids but got {value.dtype.name}")
    rank = value.shape.rank
    if rank is not None and rank != 1 + feature.ragged:
        raise UsageError(
            f"feature {feature.name!r} must have ids of shape "
            f"{'[batch, None]' if feature.ragged else '[batch]'} but got {value.shape}"
        )
    if isinstance(value, tf.RaggedTensor):
        return value.values, tf.cast(value.row_splits, tf.int64)
    return value, tf.zeros([0], tf.int64)
