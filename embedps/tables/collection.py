"""A model's embedding tables on their shards: a step's lookups and updates, files and counts."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np
import tensorflow as tf

from embedps import kernels
from embedps.checkpoint.io import format_checksum
from embedps.checkpoint.quantize import FLOAT32, Encoding
from embedps.errors import CheckpointError, CorruptCheckpointError, DimMismatchError, UsageError
from embedps.quiet import own_words
from embedps.tables import ops
from embedps.tables.optimizers import SGD
from embedps.tables.plan import Group, make_plan, stem_of
from embedps.tables.specs import FeatureSpec, TableSpec

T = TypeVar("T")
Ids: TypeAlias = tf.Tensor | tf.RaggedTensor


WriteKind: TypeAlias = Literal["base", "delta", "copy"]
_Write: TypeAlias = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], list[list[tf.Tensor]]]


class Looked(NamedTuple):
    """What a lookup leaves for `combine` and `update`; each list has an entry a group.

    Attributes:
      rows: for each shard float32 [n, dim]: what a gradient is taken of.
      routed: the ids that were asked for, and where each one's row stands.
      row_splits: for each feature int64 [batch + 1], or empty where every example has one id.
    """

    rows: list[list[tf.Tensor]]
    routed: list[ops.Routed]
    row_splits: list[list[tf.Tensor]]


class StoredFile(NamedTuple):
    """A file to load, and what it is known by."""

    path: str
    bytes: int
    xxh3_64: str


class ShardFile(NamedTuple):
    """What a shard says of a file that it wrote."""

    group: str
    shard: int
    path: str
    cut: int
    bytes: int
    rows: int
    removed: int
    xxh3_64: str
    blocks: str

    @property
    def stored(self) -> StoredFile:
        """The file, to load it."""
        return StoredFile(self.path, self.bytes, self.xxh3_64)


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
        self._write: dict[tuple[str, Encoding], _Write] = {}
        self._load: Callable[..., tf.Tensor] | None = None

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

    def lookup(self, ids: Mapping[str, Ids], *, insert: bool) -> Looked:
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

    def route(self, ids: Mapping[str, Ids]) -> Looked:
        """Says which ids a batch asks which shard for; there are no rows yet.

        Args:
          ids: as `lookup` takes them.

        Raises:
          UsageError: as `lookup`.
        """
        looked = Looked([], [], [])
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

    def combine(self, looked: Looked) -> dict[str, tf.Tensor]:
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
        looked: Looked,
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

    def write(
        self,
        kind: WriteKind,
        folder: str,
        *,
        since: Mapping[tuple[str, int], int],
        encoding: Encoding = FLOAT32,
        rest_secs: float = 0.0,
    ) -> list[ShardFile]:
        """Has every shard write its own file, all at once, while training goes on.

        Args:
          kind: all rows (base), or those touched and removed since a cut (delta); or all rows
            beside such cuts (copy), each as of some moment while it was written.
          folder: the files are FOLDER/<group>/shard-i-of-n.arrow; on a cluster, of a file system
            that the parameter servers see.
          since: by (group, shard) the cut of the last committed file, as `ShardFile.cut` gave it.
          encoding: of the floats in the files; the rows here stay as they are.
          rest_secs: while steps use a shard's rows, its writers take 4% of the shard's cores,
            but each rests no longer than this in all; 0 writes as fast as it can.

        Raises:
          CheckpointError: a file could not be written.
        """
        paths = [
            [f"{folder}/{group.name}/shard-{i}-of-{self.num_shards}.arrow" for i in self._shards]
            for group in self.groups
        ]
        cuts = [[since.get((group.name, i), -1) for i in self._shards] for group in self.groups]
        self.prepare_writes(encoding)
        try:
            infos = self._write[kind, encoding](
                tf.constant(paths), tf.constant(cuts, tf.int64), tf.constant(rest_secs, tf.float32)
            )
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            raise  # the shard is gone, and not its disk
        except tf.errors.OpError as error:
            raise CheckpointError(
                f"could not write the {kind} in {folder}: {own_words(error.message)}"
            ) from error
        files = []
        for group, group_paths, group_infos in zip(self.groups, paths, infos, strict=True):
            for shard, (path, info) in enumerate(zip(group_paths, group_infos, strict=True)):
                cut, size, rows, removed, checksum, *blocks = (int(x) for x in info.numpy())
                files.append(
                    ShardFile(
                        group=group.name,
                        shard=shard,
                        path=path,
                        cut=cut,
                        bytes=size,
                        rows=rows,
                        removed=removed,
                        xxh3_64=format_checksum(checksum),
                        blocks="".join(map(format_checksum, blocks)),
                    )
                )
        return files

    def prepare_writes(self, encoding: Encoding) -> None:
        """Makes what `write` calls, where it was not yet.

        TensorFlow tells each worker of a new function, and waits for one that hangs.
        """
        for kind in get_args(WriteKind):
            if (kind, encoding) not in self._write:
                self._write[kind, encoding] = self._make_write(kind, encoding)

    def load(self, group_files: Mapping[str, Sequence[StoredFile]]) -> int:
        """Takes the files' records, each shard its own; the files may be of any shard count.

        A table is found by its name in whichever group it is stacked now: the numbers that tell
        groups of one dim and optimizer apart change with the tables' order and settings.

        Args:
          group_files: by group the files, which are of one cut: each id is in one of them at most.

        Returns:
          How many records were taken.

        Raises:
          CorruptCheckpointError: a file is absent, or not what was written: names path, field,
            expected and found. The shards may have taken some records, but none of a file that is
            read whole (`kMaxWholeFileBytes`).
          DimMismatchError: a file holds rows of another shape, or no group is like its.
        """
        if self._load is None:
            self._load = self._make_load()
        of_groups: list[list[StoredFile]] = [[] for _ in self.groups]
        for name, files in group_files.items():
            for group in self._groups_like(name):
                of_groups[group].extend(files)
        arguments: list[tf.Tensor] = []
        for files in of_groups:
            # An int64 has the checksum's 64 bits.
            sums = [int.from_bytes(bytes.fromhex(f.xxh3_64), signed=True) for f in files]
            arguments += [
                tf.constant([f.path for f in files], tf.string),
                tf.constant(np.array([f.bytes for f in files], np.int64)),
                tf.constant(np.array(sums, np.int64)),
            ]
        with _file_errors():
            return int(np.sum(self._load(*arguments).numpy()))

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

    @property
    def _shards(self) -> range:
        return range(self.num_shards)

    def _names(self) -> list[tuple[str, int]]:
        return [(group.name, shard) for group in self.groups for shard in self._shards]

    def _groups_like(self, group_name: str) -> list[int]:
        """The groups that rows of a stored group may belong to."""
        alike = [g for g, group in enumerate(self.groups) if group.stem == stem_of(group_name)]
        if not alike:
            raise DimMismatchError(
                f"the checkpoint has rows of group {group_name!r}, the model has groups "
                f"{[g.name for g in self.groups]}: restore with the tables it was written with, "
                "or start a new model directory"
            )
        return alike

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

    def _make_write(self, kind: str, encoding: Encoding) -> _Write:
        @tf.function(autograph=False)
        def write(paths: tf.Tensor, cuts: tf.Tensor, rest_secs: tf.Tensor) -> list[list[tf.Tensor]]:
            infos = []
            for g, stores in enumerate(self._stores):
                group_infos = []
                for shard, store in enumerate(stores):
                    path, cut = paths[g, shard], cuts[g, shard]
                    with tf.device(self.devices[shard]):
                        group_infos.append(
                            kernels.load().embedps_write_rows(
                                store,
                                path,
                                cut,
                                rest_secs,
                                kind=kind,
                                rows=encoding.rows,
                                slots=encoding.slots,
                            )
                        )
                infos.append(group_infos)
            return infos

        shape = [len(self.groups), self.num_shards]
        return write.get_concrete_function(  # type: ignore[no-any-return]
            tf.TensorSpec(shape, tf.string),
            tf.TensorSpec(shape, tf.int64),
            tf.TensorSpec([], tf.float32),
        )

    def _make_load(self) -> Callable[..., tf.Tensor]:
        """One call for every group and shard: each one's records, int64 [num_groups * num_shards].

        Its arguments are by group paths, bytes and checksums.
        """

        @tf.function(autograph=False)
        def load(*files: tf.Tensor) -> tf.Tensor:
            records = []
            for g, stores in enumerate(self._stores):
                paths, sizes, sums = files[3 * g : 3 * g + 3]
                for shard, store in enumerate(stores):
                    with tf.device(self.devices[shard]):
                        records.append(
                            kernels.load().embedps_load_rows(
                                store,
                                paths,
                                sizes,
                                sums,
                                shard=shard,
                                num_shards=self.num_shards,
                                optimizer_slots=self.trainable,
                            )
                        )
            return tf.stack(records)

        of_group = [tf.TensorSpec([None], dtype) for dtype in (tf.string, tf.int64, tf.int64)]
        return load.get_concrete_function(  # type: ignore[no-any-return]
            *(of_group * len(self.groups))
        )


@contextmanager
def _file_errors() -> Iterator[None]:
    """What TensorFlow says of a file that cannot be taken, as our own errors."""
    try:
        yield
    except tf.errors.FailedPreconditionError as error:
        raise DimMismatchError(
            f"{own_words(error.message)}: restore with the tables it was written with, or start "
            "a new model directory"
        ) from error
    except (tf.errors.DataLossError, tf.errors.NotFoundError) as error:
        raise CorruptCheckpointError(own_words(error.message)) from error


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
