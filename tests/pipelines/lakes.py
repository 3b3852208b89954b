"""Tables of Delta Lake and Iceberg with what their Python libraries read but do not write."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_ARRAY_MAGIC = 1681511377


def add_delta_commit(folder: Path, actions: Sequence[dict[str, Any]]) -> None:
    """Adds a version of a Delta table: https://github.com/delta-io/delta, PROTOCOL.md."""
    log = folder / "_delta_log"
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (log / f"{len(list(log.glob('*.json'))):020}.json").write_text(text)


def delta_actions(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The actions of a kind of all versions."""
    lines = (line for path in sorted(folder.glob("_delta_log/*.json")) for line in path.open())
    return [action[kind] for action in map(json.loads, lines) if kind in action]


def set_features(folder: Path, *features: str) -> None:
    """Says that readers must know these features."""
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    lists = {"readerFeatures": [*features], "writerFeatures": [*features]}
    add_delta_commit(folder, [{"protocol": versions | lists}])


def delete_by_vector(folder: Path, add: dict[str, Any], rows: Sequence[int]) -> Path:
    """Deletes rows of a file of a Delta table by a deletion vector; returns the vector's file."""
    from pyroaring import BitMap

    vector = struct.pack("<iqi", _ARRAY_MAGIC, 1, 0) + BitMap(rows).serialize()
    name = uuid.uuid4()
    path = folder / f"deletion_vector_{name}.bin"
    size = struct.pack(">i", len(vector))
    path.write_bytes(b"\x01" + size + vector + struct.pack(">I", zlib.crc32(vector)))
    one = {
        "storageType": "u",
        "pathOrInlineDv": _z85(name.bytes),
        "offset": 1,
        "sizeInBytes": len(vector),
        "cardinality": len(rows),
    }
    gone = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    add_delta_commit(folder, [{"remove": gone}, {"add": add | {"deletionVector": one}}])
    return path


def _z85(data: bytes) -> str:
    text = ""
    for i in range(0, len(data), 4):
        value = int.from_bytes(data[i : i + 4], "big")
        text += "".join(_Z85[value // 85**place % 85] for place in (4, 3, 2, 1, 0))
    return text


def delete_by_file(table: Any, rows: Sequence[tuple[str, int]], *, by_value: bool = False) -> Path:
    """Deletes rows (a data file's path, the row's place) of an Iceberg table by a delete file.

    Args:
      table: pyiceberg's, of format 2 and not partitioned.
      rows: what is deleted.
      by_value: whether it is an equality delete, of the first column's values, instead.
    """
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
    )
    from pyiceberg.table.update.snapshot import _FastAppendFiles
    from pyiceberg.typedef import Record

    class DeleteWriter(ManifestWriterV2):
        def content(self) -> Any:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    class Append(_FastAppendFiles):
        def _manifests(self) -> list[Any]:
            spec, schema = table.spec(), table.schema()
            out = self._io.new_output(f"{table.location()}/metadata/{uuid.uuid4()}-m0.avro")
            with DeleteWriter(spec, schema, out, self._snapshot_id, self._compression) as writer:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        data_file=deletes,
                    )
                )
            return [*table.current_snapshot().manifests(self._io), writer.to_manifest_file()]

    path = Path(table.location().removeprefix("file://")) / f"data/{uuid.uuid4()}-deletes.parquet"
    ids = [2147483546, 2147483545]
    fields = [("file_path", pa.string()), ("pos", pa.int64())]
    schema = pa.schema([
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
        for (name, kind), number in zip(fields, ids, strict=True)
    ])  # fmt: skip
    columns = [
        pa.array(list(column), schema.types[i]) for i, column in enumerate(zip(*rows, strict=True))
    ]
    pq.write_table(pa.table(columns, schema=schema), path)
    deletes = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if by_value else DataFileContent.POSITION_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(rows),
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[1] if by_value else None,
        _table_format_version=2,
    )
    with table.transaction() as transaction:
        from pyiceberg.table.snapshots import Operation

        with Append(operation=Operation.DELETE, transaction=transaction, io=table.io):
            pass
    return path
