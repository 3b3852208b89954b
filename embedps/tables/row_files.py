"""Tables' rows in checkpoint files: each shard writes its own, and takes its own of any."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import tensorflow as tf

from embedps import kernels
from embedps.checkpoint.format.quantize import FLOAT32, Encoding
from embedps.console.tf_logging import own_words
from embedps.errors import CheckpointError, CorruptCheckpointError, DimMismatchError
from embedps.storage.file_io import format_checksum
from embedps.tables.plan import Group, stem_of

WriteKind: TypeAlias = Literal["base", "delta", "copy"]
_Write: TypeAlias = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], list[list[tf.Tensor]]]


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


class RowFiles:
    """Writes and loads the rows of a collection."""

    def __init__(
        self,
        groups: Sequence[Group],
        stores: Sequence[Sequence[tf.Tensor]],
        *,
        devices: Sequence[str],
        optimizer_slots: bool,
    ) -> None:
        """Keeps what is needed to call the stores.

        Args:
          groups: how the tables are stacked.
          stores: by group and shard.
          devices: each shard's.
          optimizer_slots: whether to load these too.
        """
        self._groups = tuple(groups)
        self._stores = stores
        self._devices = tuple(devices)
        self._optimizer_slots = optimizer_slots
        self._write: dict[tuple[str, Encoding], _Write] = {}
        self._load: Callable[..., tf.Tensor] | None = None

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
        n = len(self._devices)
        paths = [
            [f"{folder}/{group.name}/shard-{i}-of-{n}.arrow" for i in range(n)]
            for group in self._groups
        ]
        cuts = [[since.get((group.name, i), -1) for i in range(n)] for group in self._groups]
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
        for group, group_paths, group_infos in zip(self._groups, paths, infos, strict=True):
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
        of_groups: list[list[StoredFile]] = [[] for _ in self._groups]
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

    def _groups_like(self, group_name: str) -> list[int]:
        """The groups that rows of a stored group may belong to."""
        alike = [g for g, group in enumerate(self._groups) if group.stem == stem_of(group_name)]
        if not alike:
            raise DimMismatchError(
                f"the checkpoint has rows of group {group_name!r}, the model has groups "
                f"{[g.name for g in self._groups]}: restore with the tables it was written with, "
                "or start a new model directory"
            )
        return alike

    def _make_write(self, kind: str, encoding: Encoding) -> _Write:
        @tf.function(autograph=False)
        def write(paths: tf.Tensor, cuts: tf.Tensor, rest_secs: tf.Tensor) -> list[list[tf.Tensor]]:
            infos = []
            for g, stores in enumerate(self._stores):
                group_infos = []
                for shard, store in enumerate(stores):
                    path, cut = paths[g, shard], cuts[g, shard]
                    with tf.device(self._devices[shard]):
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

        shape = [len(self._groups), len(self._devices)]
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
                    with tf.device(self._devices[shard]):
                        records.append(
                            kernels.load().embedps_load_rows(
                                store,
                                paths,
                                sizes,
                                sums,
                                shard=shard,
                                num_shards=len(self._devices),
                                optimizer_slots=self._optimizer_slots,
                            )
                        )
            return tf.stack(records)

        of_group = [tf.TensorSpec([None], dtype) for dtype in (tf.string, tf.int64, tf.int64)]
        return load.get_concrete_function(  # type: ignore[no-any-return]
            *(of_group * len(self._groups))
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
