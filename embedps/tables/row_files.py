"""Writes and loads rows in checkpoint files. Each shard writes one file and loads its own rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import tensorflow as tf

from embedps import kernels
from embedps.checkpoint.format.quantize import FLOAT32, Encoding
from embedps.console.tf_logging import op_error_text
from embedps.constants import admission_file_name, shard_file_name
from embedps.errors import CheckpointError, CorruptCheckpointError, DimMismatchError
from embedps.storage.file_io import format_checksum
from embedps.tables.groups import TableGroup, stem_of
from embedps.tables.staged_files import StagedFiles

WriteKind: TypeAlias = Literal["base", "delta", "copy"]
_Infos: TypeAlias = list[list[tuple[tf.Tensor, tf.Tensor]]]
_Write: TypeAlias = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], _Infos]


class StoredFile(NamedTuple):
    """A file to load, with its size and checksum."""

    path: str
    bytes: int
    xxh3_64: str


class ShardFile(NamedTuple):
    """A file that a shard wrote, and the admission file that it wrote beside it, if any."""

    group: str
    shard: int
    path: str
    cut: int
    bytes: int
    rows: int
    removed: int
    xxh3_64: str
    blocks: str
    admission: ShardFile | None = None

    @property
    def stored(self) -> StoredFile:
        """The file as `RowFiles.load` takes it."""
        return StoredFile(self.path, self.bytes, self.xxh3_64)


class RowFiles:
    """Writes and loads the rows of a collection."""

    def __init__(
        self,
        groups: Sequence[TableGroup],
        stores: Sequence[Sequence[tf.Tensor]],
        *,
        devices: Sequence[str],
        optimizer_slots: bool,
        own: int | None = None,
    ) -> None:
        """Prepares to call the stores.

        Args:
          stores: by group and shard.
          devices: each shard's device.
          optimizer_slots: whether to load optimizer slots too.
          own: the shard to write and load; by default all.
        """
        self._groups = tuple(groups)
        self._stores = stores
        self._devices = tuple(devices)
        self._shards = range(len(devices)) if own is None else range(own, own + 1)
        self._optimizer_slots = optimizer_slots
        self._write: dict[tuple[str, Encoding], _Write] = {}
        self._loads: dict[tuple[Any, ...], Callable[..., tf.Tensor]] = {}

    def of_shard(self, shard: int) -> RowFiles:
        """Gives what writes and loads one shard only."""
        return RowFiles(
            self._groups,
            self._stores,
            devices=self._devices,
            optimizer_slots=self._optimizer_slots,
            own=shard,
        )

    def functions(self) -> list[Any]:
        """Lists the traced functions, which hold the stores' handles."""
        return [*self._write.values(), *self._loads.values()]

    def write(
        self,
        kind: WriteKind,
        folder: str,
        *,
        since: Mapping[tuple[str, int], int],
        encoding: Encoding = FLOAT32,
        max_pause_secs: float = 0.0,
    ) -> list[ShardFile]:
        """Makes every shard write its file, all in parallel, while training continues.

        Args:
          kind: all rows (base), or those touched and removed since a cut (delta), or all rows
            without a cut (copy), each as of some moment during the copy.
          folder: the files are FOLDER/<group>/shard-i-of-n.arrow. On a cluster, the parameter
            servers must see this file system.
          since: by (group, shard) the cut of the last committed file, from `ShardFile.cut`.
          encoding: of the floats in the files; the rows in memory stay unchanged.
          max_pause_secs: the most that each writer pauses in total. While steps use a shard's
            rows, its writers pause to use only 4% of the shard's cores; 0 writes at full speed.

        Raises:
          CheckpointError: a file cannot be written.
        """
        n = len(self._devices)
        paths = [
            [f"{folder}/{group.name}/{shard_file_name(i, n)}" for i in range(n)]
            for group in self._groups
        ]
        cuts = [[since.get((group.name, i), -1) for i in range(n)] for group in self._groups]
        self.prepare_writes(encoding)
        try:
            infos = self._write[kind, encoding](
                tf.constant(paths),
                tf.constant(cuts, tf.int64),
                tf.constant(max_pause_secs, tf.float32),
            )
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            raise  # the shard is lost; its disk may be fine
        except tf.errors.OpError as error:
            raise CheckpointError(
                f"could not write the {kind} in {folder}: {op_error_text(error.message)}"
            ) from error
        files = []
        for group, group_paths, group_infos in zip(self._groups, paths, infos, strict=True):
            for shard, infos_there in zip(self._shards, group_infos, strict=True):
                path = group_paths[shard]
                info, admission_info = (each.numpy().tolist() for each in infos_there)
                file = _shard_file(group.name, shard, path, info)
                if admission_info:
                    path = f"{folder}/{group.name}/{admission_file_name(shard, n)}"
                    beside = _shard_file(group.name, shard, path, admission_info)
                    file = file._replace(admission=beside)
                files.append(file)
        return files

    def prepare_writes(self, encoding: Encoding) -> None:
        """Makes the functions that `write` calls, unless they exist.

        TensorFlow sends a new function to every worker, and a worker that hangs blocks that.
        """
        for kind in get_args(WriteKind):
            if (kind, encoding) not in self._write:
                self._write[kind, encoding] = self._make_write(kind, encoding)

    def load(
        self,
        group_files: Mapping[str, Sequence[StoredFile]],
        *,
        optimizer_slots: bool | None = None,
    ) -> int:
        """Loads files of any number of shards; each shard loads its own records.

        It finds a table by its name, in whichever group it is now: the numbers that distinguish
        groups of one dim and optimizer depend on the tables' order and settings.

        Args:
          group_files: by group the files, all of one cut: at most one of them has an id.
          optimizer_slots: whether the files have them, and they are loaded; new rows have the
            initial ones otherwise. By default it is what the tables were made for.

        Returns:
          How many records it loaded.

        Raises:
          CorruptCheckpointError: a file is absent or damaged; names path, field, expected and
            found. The shards may have loaded some records, but none of a file that is small enough
            to be read at once (`kMaxWholeFileBytes`).
          DimMismatchError: a file has rows of another shape, or of a group that does not exist.
        """
        return self.load_cuts([group_files], optimizer_slots=optimizer_slots)

    def load_cuts(
        self,
        cuts: Sequence[Mapping[str, Sequence[StoredFile]]],
        *,
        optimizer_slots: bool | None = None,
    ) -> int:
        """Does what calls of `load` do, in less time: it reads ahead beyond the end of a cut.

        Args:
          cuts: in order, the files of each as in `load`.
        """
        slots = self._optimizer_slots if optimizer_slots is None else optimizer_slots
        return self._load_by("embedps_load_rows", *cuts, optimizer_slots=slots)

    def stage(self, cuts: Sequence[Mapping[str, Sequence[StoredFile]]]) -> StagedFiles:
        """Reads, checks and decodes what calls of `load` would load; the rows stay unchanged.

        `StagedFiles.apply` then takes milliseconds per 100,000 records. Optimizer slots are left
        out. Memory is that of the last record of each id.

        Args:
          cuts: in order, the files of each as in `load`.

        Raises:
          CorruptCheckpointError: a file is absent or damaged; names path, field, expected and
            found.
          DimMismatchError: a file has rows of another shape, or of a group that does not exist.
        """
        handles: list[list[tf.Tensor]] = []
        records = 0
        arguments = self._arguments([each for cut in cuts for each in cut.items()])
        with _file_errors():
            for g, stores in enumerate(self._stores):
                handles.append([])
                for shard, store in enumerate(stores):
                    with tf.device(self._devices[shard]):
                        staged, count = kernels.load().embedps_stage_rows(
                            store,
                            *arguments[3 * g : 3 * g + 3],
                            shard=shard,
                            num_shards=len(self._devices),
                        )
                    handles[g].append(staged)
                    records += int(count)
        return StagedFiles(self._groups, self._devices, self._stores, handles, records)

    def load_admission(self, group_files: Mapping[str, Sequence[StoredFile]]) -> int:
        """Loads counters of ids without a row, after the rows of the same checkpoint.

        Call it after `EmbeddingCollection.mark_clean`: it lists what differs for the next delta.

        Args:
          group_files: by group the admission files of a whole chain, in order, of any number of
            shards.

        Returns:
          How many records it took.

        Raises:
          CorruptCheckpointError: a file is absent or damaged; names path, field, expected, found.
        """
        return self._load_by("embedps_load_admission", group_files)

    def load_vectors(self, group_files: Mapping[str, Sequence[StoredFile]]) -> int:
        """Has new rows begin with the vectors of files, where these have the id.

        The shards map the files, which must stay as they are until the tables are cleared. No
        step may be under way.

        Args:
          group_files: by group its row files, in order: the last one that has an id counts.

        Returns:
          How many records the shards took.

        Raises:
          CorruptCheckpointError: a file is absent or damaged; names path, field, expected, found.
        """
        return self._load_by("embedps_load_vectors", group_files)

    def _load_by(
        self, op: str, *cuts: Mapping[str, Sequence[StoredFile]], **attributes: Any
    ) -> int:
        key = (op, *attributes.values())
        if key not in self._loads:
            self._loads[key] = self._make_load(getattr(kernels.load(), op), **attributes)
        load = self._loads[key]
        arguments = self._arguments([each for cut in cuts for each in cut.items()])
        with _file_errors():
            return int(np.sum(load(*arguments).numpy()))

    def _arguments(
        self, group_files: Sequence[tuple[str, Sequence[StoredFile]]]
    ) -> list[tf.Tensor]:
        """Makes the paths, sizes and checksums of each group's files."""
        of_groups: list[list[StoredFile]] = [[] for _ in self._groups]
        for name, files in group_files:
            for group in self._groups_like(name):
                of_groups[group].extend(files)
        arguments: list[tf.Tensor] = []
        for files in of_groups:
            # An int64 holds the checksum's 64 bits.
            sums = [int.from_bytes(bytes.fromhex(f.xxh3_64), signed=True) for f in files]
            arguments += [
                tf.constant([f.path for f in files], tf.string),
                tf.constant(np.array([f.bytes for f in files], np.int64)),
                tf.constant(np.array(sums, np.int64)),
            ]
        return arguments

    def _groups_like(self, group_name: str) -> list[int]:
        """Returns the indexes of groups that may hold the rows of a stored group."""
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
        def write(paths: tf.Tensor, cuts: tf.Tensor, max_pause_secs: tf.Tensor) -> _Infos:
            infos: _Infos = []
            for g, stores in enumerate(self._stores):
                group_infos = []
                for shard in self._shards:
                    store, path, cut = stores[shard], paths[g, shard], cuts[g, shard]
                    with tf.device(self._devices[shard]):
                        written = kernels.load().embedps_write_rows(
                            store,
                            path,
                            cut,
                            max_pause_secs,
                            kind=kind,
                            embedding_encoding=encoding.rows,
                            optimizer_slot_encoding=encoding.optimizer_slots,
                        )
                        group_infos.append((written.info, written.admission_info))
                infos.append(group_infos)
            return infos

        shape = [len(self._groups), len(self._devices)]
        return write.get_concrete_function(  # type: ignore[no-any-return]
            tf.TensorSpec(shape, tf.string),
            tf.TensorSpec(shape, tf.int64),
            tf.TensorSpec([], tf.float32),
        )

    def _make_load(self, op: Callable[..., Any], **attributes: Any) -> Callable[..., tf.Tensor]:
        """Makes a function that loads files into every group and shard.

        Its arguments are paths, sizes and checksums per group. It returns the number of records
        per store, int64 [num_groups * num_shards].
        """

        @tf.function(autograph=False)
        def load(*files: tf.Tensor) -> tf.Tensor:
            records = []
            for g, stores in enumerate(self._stores):
                paths, sizes, sums = files[3 * g : 3 * g + 3]
                for shard in self._shards:
                    with tf.device(self._devices[shard]):
                        records.append(
                            op(
                                stores[shard],
                                paths,
                                sizes,
                                sums,
                                shard=shard,
                                num_shards=len(self._devices),
                                **attributes,
                            )
                        )
            return tf.stack(records)

        of_group = [tf.TensorSpec([None], dtype) for dtype in (tf.string, tf.int64, tf.int64)]
        return load.get_concrete_function(  # type: ignore[no-any-return]
            *(of_group * len(self._groups))
        )


def _shard_file(group: str, shard: int, path: str, info: list[int]) -> ShardFile:
    cut, size, rows, removed, checksum, *blocks = info
    return ShardFile(
        group=group,
        shard=shard,
        path=path,
        cut=cut,
        bytes=size,
        rows=rows,
        removed=removed,
        xxh3_64=format_checksum(checksum),
        blocks="".join(map(format_checksum, blocks)),
    )


@contextmanager
def _file_errors() -> Iterator[None]:
    """Turns TensorFlow's errors for a file that cannot be loaded into ours."""
    try:
        yield
    except tf.errors.FailedPreconditionError as error:
        raise DimMismatchError(
            f"{op_error_text(error.message)}: restore with the tables it was written with, or "
            "start a new model directory"
        ) from error
    except (tf.errors.DataLossError, tf.errors.NotFoundError) as error:
        raise CorruptCheckpointError(op_error_text(error.message)) from error
