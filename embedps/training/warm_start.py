"""A warm start: a new run begins with another run's rows and network, and with vectors of files.

Rows go by the names of tables, variables by their names. The rows are written to a file per group
of the new model, whatever shards and encodings the checkpoint has, and the shards load their own.
Vectors of files are written in the same way, and stay: a row that is evicted begins with its vector
again when its id returns.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import tensorflow as tf

from embedps import constants
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_named
from embedps.checkpoint.format.manifest import FileEntry, Manifest
from embedps.checkpoint.format.rows import RowFile, by_table, check_schema, with_tables
from embedps.checkpoint.lease import LeaseRenewer
from embedps.checkpoint.tools.replay import make_partitions
from embedps.checkpoint.tools.row_input import EMBEDDING, RowInput, Vectors
from embedps.engine.checkpoint_restore import load_entries
from embedps.engine.model_signature import check_transforms
from embedps.errors import CheckpointError, DimMismatchError, UsageError
from embedps.run.warm_start_config import WarmStartConfig
from embedps.storage import file_io
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.groups import TableGroup
from embedps.tables.specs import TableSpec

_MAX_NAMES = 8
_VECTOR_COLUMNS = ["table", "id", EMBEDDING, "last_step", "frequency"]
_VERSION = {constants.ROW_FILE_VERSION_KEY.encode(): constants.ROW_FILE_VERSION.encode()}


class WarmStart(NamedTuple):
    """What a new run began with.

    Attributes:
      lines: that say what was taken, what begins fresh and what was left.
      vectors: files with which rows of their ids begin, whenever they are made.
    """

    lines: tuple[str, ...]
    vectors: tuple[FileEntry, ...]


@dataclasses.dataclass(frozen=True)
class _Target:
    """A table of the new model that takes the rows of one of the checkpoint."""

    group: TableGroup
    table: TableSpec
    slots: bool


@contextmanager
def warm_start(
    asked: WarmStartConfig,
    directory: CheckpointDirectory,
    collection: EmbeddingCollection,
    variables: Mapping[str, tf.Variable],
    *,
    transforms: str,
    dense_optimizer: str,
    leads: bool,
) -> Iterator[WarmStart]:
    """Loads what a new run begins with: of another run what both models have, then vectors.

    Args:
      asked: from where, and how.
      directory: of the new run; the shards must see it.
      collection: the new tables, which are empty.
      variables: of the new network and its optimizer, by name.
      transforms: the digest of the new run's data.
      dense_optimizer: the kind of the new network's optimizer.
      leads: this process writes the run's checkpoints: the files of vectors stay, unless the block
        raises.

    Raises:
      UsageError: there is no such checkpoint or table, it has no name that is to be mapped, or a
        file of vectors is not what it must be.
      DimMismatchError: a table has another dim, or the data has other transforms.
      CheckpointError: the checkpoint cannot be read.
    """
    scratch = directory.path / f"warm-start-{os.getpid()}"
    kept = directory.vectors_dir(0) if leads else scratch
    try:
        with (
            _Writers(directory, kept, "taken") as taken,
            _Writers(directory, kept, "given") as given,
        ):
            lines: list[str] = []
            if asked.model is not None:
                with _source(asked) as (source, manifest):
                    check_transforms(manifest, transforms)
                    needed = [file for file in manifest.files if not file.is_admission]
                    source.check_content(manifest, needed)
                    number, step = manifest.number, manifest.step
                    lines.append(f"starts from {source.path}, checkpoint {number}, step {step}")
                    lines += _take_variables(asked, source, manifest, variables, dense_optimizer)
                    rows = _Writers(directory, scratch, "rows")
                    lines += _take_rows(asked, source, manifest, rows, taken, collection)
            lines += _make_rows(asked, given, collection)
        if given.count:
            _load(collection, given, "--from-vectors")
        yield WarmStart(tuple(lines), (*taken.files.values(), *given.files.values()))
    except BaseException:
        _remove(kept)
        raise
    finally:
        _remove(scratch)


def _remove(folder: Path) -> None:
    if folder.is_dir():
        file_io.store_of(folder).remove_directory(folder)


@contextmanager
def _source(asked: WarmStartConfig) -> Iterator[tuple[CheckpointDirectory, Manifest]]:
    """Gives the other run's directory and its manifest, under a lease."""
    try:
        source, number = asked.source()
    except (UsageError, CheckpointError) as error:
        raise UsageError(f"--from {asked.model}: {error}") from error
    with LeaseRenewer(source, holder="warm-start", is_needed=False) as lease:
        try:
            manifest = lease.take_latest() if number is None else lease.take(number)
        except CheckpointError as error:
            raise UsageError(f"--from {asked.model}: {error}") from error
        if manifest is None:
            raise UsageError(f"--from {asked.model}: there is no such checkpoint")
        yield source, manifest


def _take_rows(
    asked: WarmStartConfig,
    source: CheckpointDirectory,
    manifest: Manifest,
    rows: _Writers,
    vectors: _Writers,
    collection: EmbeddingCollection,
) -> Iterator[str]:
    """Loads the rows of tables that both have; copies the vectors with which they began."""
    targets = _targets(asked, manifest, collection)
    counts = dict.fromkeys(targets, 0)
    with rows:
        for part in make_partitions(source, manifest.chain):
            for name, batch in by_table(part.rows(), part.tables):
                if name in targets:
                    rows.write(targets[name], batch, part.metadata)
                    counts[name] += batch.num_rows
    _load(collection, rows, f"--from {asked.model}")
    for entry in manifest.vectors:
        file = RowFile(source.file(entry))
        for name, batch in by_table(file.batches(), file.tables):
            if name in targets:
                target = dataclasses.replace(targets[name], slots=False)
                vectors.write(target, batch.select(_VECTOR_COLUMNS), _VERSION)
    for kind in (True, False):
        taken = [
            f"{old}: {counts[old]:,}" if old == target.table.name
            else f"{old} as {target.table.name}: {counts[old]:,}"
            for old, target in targets.items()
            if target.slots == kind
        ]  # fmt: skip
        if taken:
            yield f"rows taken {'with' if kind else 'without'} optimizer slots: {', '.join(taken)}"
    left = [table["name"] for table in manifest.tables if table["name"] not in targets]
    yield from _listed("tables left, which this model lacks", left)
    names = {target.table.name for target in targets.values()}
    fresh = [table.name for table in collection.tables if table.name not in names]
    yield from _listed("tables that begin fresh", fresh)


def _make_rows(
    asked: WarmStartConfig, writers: _Writers, collection: EmbeddingCollection
) -> Iterator[str]:
    """Writes rows of the vectors in files, with the optimizer slots of new rows."""
    ours = {table.name: (group, table) for group in collection.groups for table in group.tables}
    counts: dict[str, int] = {}
    for name, path in asked.files().items():
        what = f"--from-vectors {name}={path}"
        if name not in ours:
            raise UsageError(f"{what}: there is no such table, the model has {', '.join(ours)}")
        target, seen = _Target(*ours[name], slots=False), [np.zeros(0, np.int64)]
        counts[name] = 0
        try:
            given = RowInput(path=Path(path))
            for vectors in given.vectors({EMBEDDING: ours[name][1].embedding_dim}):
                writers.write(target, _new_rows(vectors), _VERSION)
                seen.append(vectors.ids)
                counts[name] += len(vectors.ids)
        except UsageError as error:
            raise UsageError(f"{what}: {error}") from None
        ids, times = np.unique(np.concatenate(seen), return_counts=True)
        if (times > 1).any():
            raise UsageError(f"{what}: each id must be there once but {ids[times > 1][0]} is not")
    if counts:
        made = ", ".join(f"{name}: {count:,}" for name, count in counts.items())
        yield f"rows made of files: {made}"


def _new_rows(vectors: Vectors) -> pa.RecordBatch:
    """Makes rows that no step has updated."""
    count, dim = vectors.floats[EMBEDDING].shape
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int16)), pa.array([""]))
    flat = pa.array(np.ascontiguousarray(vectors.floats[EMBEDDING]).ravel())
    never = pa.array(np.zeros(count, np.uint32))
    columns = {
        "table": names,
        "id": pa.array(vectors.ids),
        EMBEDDING: pa.FixedSizeListArray.from_arrays(flat, dim),
        "last_step": never,
        "frequency": never,
    }
    return pa.RecordBatch.from_pydict(columns)


def _load(collection: EmbeddingCollection, written: _Writers, what: str) -> None:
    """Has the shards load the rows that were written, as many as their limits allow."""
    loaded = sum(
        load_entries(collection, written.directory, [entry], optimizer_slots=slots)
        for (_, slots), entry in written.files.items()
    )
    collection.mark_clean()
    if loaded != written.count:
        raise CheckpointError(
            f"{what} must give {written.count} rows to the shards, but they took {loaded}: "
            "run again"
        )


def _targets(
    asked: WarmStartConfig, manifest: Manifest, collection: EmbeddingCollection
) -> dict[str, _Target]:
    """Finds, by the names of stored tables, the tables that take their rows."""
    ours = {table.name: (group, table) for group in collection.groups for table in group.tables}
    names, targets = asked.names(), {}
    for stored in manifest.tables:
        old = stored["name"]
        group, table = ours.get(names.get(old, old), (None, None))
        if group is None or table is None:
            continue
        dim = table.embedding_dim
        fits = {"refuse": stored["dim"] == dim, "cut": stored["dim"] >= dim}
        if not fits.get(asked.dims, stored["dim"] <= dim):
            raise DimMismatchError(
                f"table {table.name!r} has {dim} floats per row, {asked.model} has "
                f"{stored['dim']}: give --from-dims {'cut' if stored['dim'] > dim else 'pad'}, or "
                "leave the table out by --from-map to a name that the model lacks"
            )
        is_same = stored["dim"] == dim and stored["optimizer"]["kind"] == table.optimizer.kind
        targets[old] = _Target(group, table, asked.optimizer_slots and is_same)
    return targets


class _Writers:
    """Writes a row file for each group, and for rows with and without optimizer slots.

    Attributes:
      directory: of the run.
      files: by group and whether they have slots; complete once the block has ended.
    """

    def __init__(self, directory: CheckpointDirectory, folder: Path, name: str) -> None:
        self.directory = directory
        self._folder, self._name = folder, name
        self._stack = ExitStack()
        self._open: dict[tuple[str, bool], tuple[Any, pa.Schema, list[str]]] = {}
        self._counts: dict[tuple[str, bool], int] = {}
        self.files: dict[tuple[str, bool], FileEntry] = {}

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(self._counts.values())

    def __enter__(self) -> _Writers:
        self._stack.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def write(self, target: _Target, rows: pa.RecordBatch, metadata: Mapping[bytes, bytes]) -> None:
        """Writes rows of one table of a checkpoint, whose floats are decoded."""
        key = (target.group.name, target.slots)
        if key not in self._open:
            tables = [table.name for table in target.group.tables]
            schema = _schema(rows.schema, target, with_tables(metadata, tables))
            writer = self._stack.enter_context(self._file(key, schema))
            self._open[key] = writer, schema, tables
            self._counts[key] = 0
        writer, schema, tables = self._open[key]
        n = rows.num_rows
        self._counts[key] += n
        code = np.full(n, tables.index(target.table.name), np.int16)
        columns = {
            "table": pa.DictionaryArray.from_arrays(pa.array(code), pa.array(tables)),
            "embedding": _resized(rows["embedding"], target.group.dim),
            "last_step": pa.array(np.zeros(n, np.uint32)),
            "removed": pa.array(np.zeros(n, bool)),
        }
        arrays = [columns[name] if name in columns else rows[name] for name in schema.names]
        writer.write_batch(
            pa.RecordBatch.from_arrays(
                [a.cast(f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema
            )
        )

    @contextmanager
    def _file(self, key: tuple[str, bool], schema: pa.Schema) -> Iterator[Any]:
        group, slots = key
        path = self._folder / group / f"{self._name}{'-slots' if slots else ''}.arrow"
        with file_io.write_atomically(path) as file, pa.ipc.new_file(file, schema) as writer:
            yield writer
        name = self.directory.relative(path)
        self.files[key] = FileEntry.of(name, file.digest, rows=self._counts[key])


def _schema(rows: pa.Schema, target: _Target, metadata: Mapping[bytes, bytes]) -> pa.Schema:
    """Makes the schema of a group's file, of the schema of a checkpoint's rows."""
    item = rows.field("embedding").type.value_field
    slots = rows.names[rows.names.index("embedding") + 1 : rows.names.index("last_step")]
    dropped = () if target.slots else slots
    fields = [
        field.with_type(pa.list_(item, target.group.dim)) if field.name == "embedding" else field
        for field in rows
        if field.name not in dropped
    ]
    fields.append(pa.field("removed", pa.bool_(), nullable=False))
    schema = pa.schema(fields, metadata=metadata)
    check_schema(target.group.name, schema)
    return schema


def _resized(embeddings: pa.FixedSizeListArray, dim: int) -> pa.FixedSizeListArray:
    """Cuts or pads vectors to so many floats."""
    width = embeddings.type.list_size
    if width == dim:
        return embeddings
    values = embeddings.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    found = np.zeros([len(values), dim], np.float32)
    found[:, : min(width, dim)] = values[:, :dim]
    return pa.FixedSizeListArray.from_arrays(pa.array(found.ravel()), dim)


def _take_variables(
    asked: WarmStartConfig,
    source: CheckpointDirectory,
    manifest: Manifest,
    variables: Mapping[str, tf.Variable],
    dense_optimizer: str,
) -> Iterator[str]:
    """Assigns the variables that both have, of one shape and dtype; says which."""
    old_names = {new: old for old, new in asked.names().items()}
    known = {table["name"] for table in manifest.tables}
    stored: list[str] = []
    arrays: dict[str, np.ndarray] = {}
    if manifest.dense is not None:
        wanted = {old_names.get(name, name) for name in variables}
        stored, arrays = read_named(source.file(manifest.dense), wanted)
    if absent := [old for old in asked.names() if old not in known and old not in stored]:
        raise UsageError(
            f"--from-map {absent[0]}={asked.names()[absent[0]]}: {asked.model} has neither a table "
            f"nor a variable of that name, it has tables {sorted(known)} and variables "
            f"{[name for name in stored if not name.startswith('optimizer/')]}"
        )
    taken, fresh = [], []
    network = {k: v for k, v in variables.items() if not k.startswith("optimizer/")}
    for name, variable in network.items():
        if _assign(variable, arrays.get(old_names.get(name, name))):
            taken.append(old_names.get(name, name))
        else:
            fresh.append(name)
    same = asked.optimizer_slots and manifest.model.get("dense_optimizer") == dense_optimizer
    state = 0
    if same and taken:
        states = (name for name in variables if name not in network)
        state = sum(_assign(variables[n], arrays.get(old_names.get(n, n))) for n in states)
    yield f"variables of the network taken: {len(taken)}, of its optimizer: {state}"
    yield from _listed("variables that begin fresh", fresh)
    left = [n for n in stored if n not in taken and not n.startswith("optimizer/")]
    yield from _listed("variables left", left)


def _assign(variable: tf.Variable, array: np.ndarray | None) -> bool:
    """Assigns a value if it has the variable's shape and dtype; tells whether it has."""
    ours = (tuple(variable.shape), np.dtype(variable.dtype.as_numpy_dtype))
    if array is None or (array.shape, array.dtype) != ours:
        return False
    variable.assign(array)
    return True


def _listed(what: str, names: Sequence[str]) -> list[str]:
    more = len(names) - _MAX_NAMES
    shown = ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
    return [f"{what}: {shown}"] if names else []
