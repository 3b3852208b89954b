"""Restores tables and variables from a checkpoint, and checks that it is of this model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_dense, read_named
from embedps.checkpoint.format.manifest import FileEntry, Manifest, SaveSet
from embedps.constants import shard_file_name
from embedps.errors import CorruptCheckpointError, DimMismatchError
from embedps.tables import stored_tables
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.row_files import StoredFile
from embedps.tables.specs import TableSpec
from embedps.tables.staged_files import StagedFiles


def describe_tables(collection: EmbeddingCollection) -> list[dict[str, Any]]:
    """Makes the field `tables` of a manifest."""
    return [
        {**table.to_json(), "group": group.name}
        for group in collection.groups
        for table in group.tables
    ]


def check_tables(
    manifest: Manifest, tables: Sequence[TableSpec], *, embedding_dim: int | None = None
) -> None:
    """Checks that a checkpoint is of these tables.

    Args:
      embedding_dim: what the model's config calls so; its rows may have more floats.

    Raises:
      DimMismatchError: a table is absent on one side, or differs in dim, optimizer or `absent`.
    """
    stored_tables.check_tables(manifest.tables, tables, embedding_dim=embedding_dim)


def eviction_changes(manifest: Manifest, collection: EmbeddingCollection) -> list[str]:
    """Says, a line per table, how eviction differs from what a checkpoint was written with.

    Any change is allowed: it holds for the restored rows too.
    """
    stored = {t["name"]: t.get("eviction", []) for t in manifest.tables}
    lines = []
    for table in collection.tables:
        before, now = stored.get(table.name, []), table.to_json().get("eviction", [])
        if before != now:
            lines.append(
                f"table {table.name!r}: eviction is {_policies(now)}, the checkpoint has "
                f"{_policies(before)}: from now on it holds for the restored rows too"
            )
    return lines


def dtype_changes(manifest: Manifest, collection: EmbeddingCollection) -> list[str]:
    """Says, a line per table and dtype, how memory differs from what wrote a checkpoint.

    Any change is allowed: rows that are loaded are rounded to the nearest.
    """
    stored = {t["name"]: t for t in manifest.tables}
    lines = []
    for table in collection.tables:
        for field in ("row_dtype", "slot_dtype"):
            before = stored.get(table.name, {}).get(field, "float32")
            now = getattr(table, field)
            if before != now:
                lines.append(
                    f"table {table.name!r}: {field} is {now}, the checkpoint has {before}: the "
                    "restored rows are rounded to it"
                )
    return lines


def _policies(stored: Sequence[Mapping[str, Any]]) -> str:
    each = (
        f"{p.get('kind')}({', '.join(f'{k}={v}' for k, v in p.items() if k != 'kind')})"
        for p in stored
    )
    return " ".join(each) or "none"


def load_rows(
    collection: EmbeddingCollection, directory: CheckpointDirectory, saves: Sequence[SaveSet]
) -> int:
    """Loads saves in order; each shard verifies the files and keeps its own rows.

    Returns:
      The number of records loaded.

    Raises:
      CorruptCheckpointError: a file is absent, or not what was written. Then the tables hold a part
        of the saves' records.
      DimMismatchError: a save is of other tables.
    """
    records = collection.files.load_cuts([_by_group(directory, save.files) for save in saves])
    _check_records(directory, saves, records)
    return records


def load_entries(
    collection: EmbeddingCollection,
    directory: CheckpointDirectory,
    entries: Iterable[FileEntry],
    *,
    optimizer_slots: bool | None = None,
) -> int:
    """Loads row files of one cut; see `RowFiles.load`."""
    return collection.files.load(_by_group(directory, entries), optimizer_slots=optimizer_slots)


def load_shard(
    collection: EmbeddingCollection,
    directory: CheckpointDirectory,
    chain: Sequence[SaveSet],
    vectors: Sequence[FileEntry],
    shard: int,
) -> dict[tuple[str, int], int]:
    """Loads one shard's part of a chain, and of vectors, into its empty stores; others stay.

    If a save was written by as many shards as there are, only the shard's own files are read.

    Returns:
      By (group, shard) the cut that the next delta must be since.

    Raises:
      CorruptCheckpointError: a file is absent, or not what was written.
      DimMismatchError: a save is of other tables.
    """
    own = collection.files.of_shard(shard)
    name = shard_file_name(shard, collection.num_shards)
    cuts, expected, all_are_own = [], 0, True
    for save in chain:
        mine = [entry for entry in save.files if entry.path.rpartition("/")[2] == name]
        cuts.append(_by_group(directory, mine or save.files))
        expected += sum(entry.rows + entry.removed for entry in mine)
        all_are_own &= bool(mine)
    records = own.load_cuts(cuts)
    if all_are_own and records != expected:
        raise CorruptCheckpointError(
            f"{directory.path} must give {expected} records to shard {shard}, but it took "
            f"{records}: restore with the tables it was written with"
        )
    marked = collection.mark_shards_clean([shard])
    if files := _admission_files(directory, chain):
        own.load_admission(files)
    if vectors:
        own.load_vectors(_by_group(directory, vectors))
    return marked


def stage_rows(
    collection: EmbeddingCollection, directory: CheckpointDirectory, saves: Sequence[SaveSet]
) -> StagedFiles:
    """Reads and checks what `load_rows` would load. The tables stay unchanged.

    Raises:
      CorruptCheckpointError: a file is absent, or not what was written.
      DimMismatchError: a save is of other tables.
    """
    staged = collection.files.stage([_by_group(directory, save.files) for save in saves])
    _check_records(directory, saves, staged.records)
    return staged


def load_vectors(
    collection: EmbeddingCollection, directory: CheckpointDirectory, vectors: Sequence[FileEntry]
) -> None:
    """Has new rows begin with the vectors that a manifest lists, before any step.

    Vectors of a table that the collection lacks are left out.

    Raises:
      CorruptCheckpointError: a file is absent, or not what was written.
    """
    if vectors:
        collection.files.load_vectors(_by_group(directory, vectors))


def _by_group(
    directory: CheckpointDirectory, entries: Iterable[FileEntry]
) -> dict[str, list[StoredFile]]:
    files: dict[str, list[StoredFile]] = {}
    for entry in entries:
        path = str(directory.file(entry).absolute())
        files.setdefault(entry.group, []).append(
            StoredFile(path=path, bytes=entry.bytes, xxh3_64=entry.xxh3_64)
        )
    return files


def _check_records(directory: CheckpointDirectory, saves: Sequence[SaveSet], records: int) -> None:
    rows, removed = sum(s.rows for s in saves), sum(s.removed for s in saves)
    if records != rows + removed:
        names = ", ".join(f"{save.kind}-{save.number}" for save in saves)
        raise CorruptCheckpointError(
            f"{directory.path}/{names} must give {rows} rows and {removed} removals to the shards, "
            f"but they took {records} records: restore with the tables it was written with"
        )


def load_admission(
    collection: EmbeddingCollection, directory: CheckpointDirectory, chain: Sequence[SaveSet]
) -> None:
    """Loads the counters of a chain whose rows the tables hold; each shard takes its own.

    Counters of a table that no longer counts are left out.

    Raises:
      CorruptCheckpointError: a file is absent, or not what was written.
    """
    if files := _admission_files(directory, chain):
        collection.files.load_admission(files)


def _admission_files(
    directory: CheckpointDirectory, chain: Sequence[SaveSet]
) -> dict[str, list[StoredFile]]:
    return _by_group(directory, [entry for save in chain for entry in save.admission])


def load_dense(
    directory: CheckpointDirectory,
    manifest: Manifest,
    variables: Mapping[str, tf.Variable],
    *,
    whole: bool = False,
) -> None:
    """Sets variables to the values of a checkpoint's dense file; see `read_values`."""
    for variable, value in read_values(directory, manifest, variables, whole=whole):
        variable.assign(value)


def read_values(
    directory: CheckpointDirectory,
    manifest: Manifest,
    variables: Mapping[str, tf.Variable],
    *,
    whole: bool = False,
) -> list[tuple[tf.Variable, np.ndarray]]:
    """Reads the values of variables from a checkpoint's dense file, and checks them.

    Variables are found by their names. Those that only one side has, such as those of a layer that
    got another attribute, are paired in order. Files of before names have numbers: there, all are.

    Args:
      manifest: one of them.
      variables: of the network, or of the network and its optimizer, by name.
      whole: whether the file must have exactly these variables.

    Returns:
      Each variable with its value.

    Raises:
      DimMismatchError: the file has fewer variables, or more of a network or, if `whole`, of its
        optimizer; or one has another shape or dtype.
    """
    if manifest.dense is None:
        raise DimMismatchError(f"manifest {manifest.number} has no dense variables")
    path = directory.file(manifest.dense)
    # The network alone is a third of what the file has with Adam's state.
    stored, arrays = read_named(path, variables.keys())
    advice = "use the network it was written with, or start a new model directory"
    if len(stored) < len(variables) or (whole and len(stored) > len(variables)):
        whose = "the network and its optimizer have" if whole else "the network has"
        raise DimMismatchError(
            f"{path} has {len(stored)} dense variables, {whose} {len(variables)}: {advice}"
        )
    rest = [name for name in stored if name not in variables]
    absent = [name for name in variables if name not in set(stored)]
    other = dict(zip(absent, rest, strict=False))
    named = [name for name in stored if not name.startswith("optimizer/") and not name.isdecimal()]
    if lacking := [name for name in named if name in rest[len(absent) :]]:
        raise DimMismatchError(f"the network must have {lacking[0]!r}, as {path} does: {advice}")
    if other:
        arrays |= read_dense(path, other.values())
    values = []
    for name, variable in variables.items():
        array = arrays[other.get(name, name)]
        ours = (tuple(variable.shape), np.dtype(variable.dtype.as_numpy_dtype))
        if ours != (array.shape, array.dtype):
            raise DimMismatchError(
                f"dense variable {name!r} has shape {ours[0]} of {ours[1].name}, "
                f"{path} has {other.get(name, name)!r} of shape {array.shape} of "
                f"{array.dtype.name}: {advice}"
            )
        values.append((variable, array))
    return values
