"""Row files read and replayed without the kernels: what the C++ loader does, in plain Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from embedps.checkpoint import io
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.manifest import Manifest
from embedps.checkpoint.objects import as_path
from embedps.checkpoint.quantize import decode, encoding_of, stored_type
from embedps.errors import CheckpointError, CorruptCheckpointError

_FIRST = {"table": pa.dictionary(pa.int16(), pa.string()), "id": pa.int64()}
_LAST = {"last_step": pa.uint32(), "frequency": pa.uint32(), "removed": pa.bool_()}


def read_row_file(path: Path | str) -> pa.Table:
    """Reads a row file: its records in file order, removals among them, all floats as float32.

    Raises:
      CorruptCheckpointError: it is absent, or not a row file; names path, field, expected, found.
    """
    try:
        with io.open_arrow(as_path(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        table.validate(full=True)  # an index out of its dictionary would be followed
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: names not of UTF-8
        raise CorruptCheckpointError(f"{path}: cannot be read as a row file: {error}") from error
    check_schema(path, table.schema)
    for name in table.column_names:
        if table[name].null_count:
            raise CorruptCheckpointError(
                f"{path}: field {name!r}: expected no nulls, found {table[name].null_count}"
            )
    return decode(path, table)


def check_schema(path: Path | str, schema: pa.Schema) -> None:
    """Raises CorruptCheckpointError unless the schema is a row file's."""
    encoding, dim = encoding_of(path, schema)
    names = schema.names
    first = [*_FIRST, "embedding", *encoding.columns]
    slots = names[len(first) : -len(_LAST)]
    wanted = [*first, *slots, *_LAST]
    if names != wanted or len(set(names)) != len(names):
        raise CorruptCheckpointError(f"{path}: columns: expected {wanted}, found {names}")
    fixed = _FIRST | dict.fromkeys(encoding.columns, pa.float32()) | _LAST
    for name, kind in fixed.items():
        if schema.field(name).type != kind:
            raise CorruptCheckpointError(
                f"{path}: field {name!r}: expected type {kind}, found {schema.field(name).type}"
            )
    for name in ("embedding", *slots):
        kind = schema.field(name).type
        width = kind.list_size if pa.types.is_fixed_size_list(kind) else 1
        expected = stored_type(encoding, name, dim if dim and name == "embedding" else width)
        if not pa.types.is_fixed_size_list(kind) or (kind.value_type, kind.list_size) != (
            expected.value_type,
            expected.list_size,
        ):
            raise CorruptCheckpointError(
                f"{path}: field {name!r}: expected a fixed_size_list of {expected.value_type}"
                f"[{expected.list_size}], found {kind}"
            )


def read_chain(
    directory: CheckpointDirectory, manifest: Manifest, group: str, *, table: str | None = None
) -> pa.Table:
    """Replays the chain of one group: its live rows, by table and id, without column `removed`.

    The last record of a table's id wins, and none is left of one that is a removal: saves in the
    chain's order, and records in their file's. All shards together: an id has one shard in a save.

    Args:
      table: of this table only.

    Raises:
      CheckpointError: the manifest has no such group.
      CorruptCheckpointError: a file is absent or not a row file.
    """
    saved = [file for save in manifest.chain for file in save.files]
    paths = [directory.file(file) for file in saved if file.group == group]
    if not paths:
        groups = sorted({file.group for file in saved})
        raise CheckpointError(f"manifest {manifest.number} has no group {group!r}, it has {groups}")
    records = _concat(paths, table)
    codes, names = _table_codes(records)
    rank = {name: i for i, name in enumerate(sorted(names))}
    ranks = np.array([rank[name] for name in names], np.int64)
    tables = ranks[codes] if names else codes
    live = _last_records(tables, records["id"].to_numpy(), records["removed"].to_numpy())
    return records.drop_columns(["removed"]).take(pa.array(live))


def read_table(directory: CheckpointDirectory, manifest: Manifest, name: str) -> pa.Table:
    """The live rows of one table, by id; column `table` left out.

    Raises:
      CheckpointError: the manifest has no such table.
    """
    groups = {table["name"]: table["group"] for table in manifest.tables}
    if name not in groups:
        raise CheckpointError(
            f"manifest {manifest.number} has no table {name!r}, it has {sorted(groups)}"
        )
    return read_chain(directory, manifest, groups[name], table=name).drop_columns(["table"])


def _concat(paths: Sequence[Path], only: str | None) -> pa.Table:
    first: pa.Schema | None = None
    tables = []
    for path in paths:
        records = read_row_file(path).replace_schema_metadata(None)
        first = records.schema if first is None else first
        types = [field.type for field in records.schema]
        if types != [field.type for field in first] or records.schema.names != first.names:
            raise CorruptCheckpointError(
                f"{path}: expected the columns of {paths[0]}, found {records.schema}"
            )
        if only is not None:
            codes, names = _table_codes(records)
            wanted = names.index(only) if only in names else -1
            records = records.filter(pa.array(codes == wanted))
        tables.append(records.cast(first))
    return pa.concat_tables(tables).unify_dictionaries()


def _table_codes(records: pa.Table) -> tuple[np.ndarray, list[str]]:
    """Each record's index into the table names, and these."""
    column = records.unify_dictionaries()["table"].combine_chunks()
    codes: np.ndarray = column.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, column.dictionary.to_pylist()


def _last_records(tables: np.ndarray, ids: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Indices of the records that win and are rows, ordered by table and id."""
    order = np.lexsort((np.arange(len(ids)), ids, tables))
    same = (ids[order][1:] == ids[order][:-1]) & (tables[order][1:] == tables[order][:-1])
    last: np.ndarray = order[np.append(~same, True)[: len(order)]]
    live: np.ndarray = last[~removed[last]]
    return live
