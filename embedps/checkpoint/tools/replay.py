"""Replays chains without the kernels, in Arrow, batch by batch; the C++ loader does the same.

The last record of a table's id wins, in the order of saves, files and records. If it is a removal,
the row is gone. A first pass finds the winning records from the ids alone, one bucket of ids at a
time, and keeps one byte per record. A second pass reads the files in order and yields the winners.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from embedps import constants
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.admission import AdmissionFile
from embedps.checkpoint.format.manifest import FileEntry, Manifest, SaveSet
from embedps.checkpoint.format.rows import RowFile, table_codes, with_tables
from embedps.errors import CheckpointError, CorruptCheckpointError

MAX_KEYS = 1 << 21  # sorted at once; takes about 100 MB
_SHARD_NAMES = [
    re.compile(re.escape(name).replace("%d", r"([0-9]{1,9})"))
    for name in (constants.SHARD_FILE_FORMAT, constants.ADMISSION_FILE_FORMAT)
]


@dataclasses.dataclass(frozen=True)
class NumberedBatch:
    """A batch of records, numbered within a partition.

    Attributes:
      first: the number of its first record in the partition.
      tables: each record's index into the partition's tables, int64 [num_records].
      batch: the records as in the file.
    """

    first: int
    tables: np.ndarray
    batch: pa.RecordBatch

    @property
    def ids(self) -> np.ndarray:
        """Returns the ids, int64 [num_records]."""
        ids: np.ndarray = self.batch["id"].to_numpy()
        return ids

    @property
    def removed(self) -> np.ndarray:
        """Tells which records are removals: bool [num_records]."""
        removed: np.ndarray = self.batch["removed"].to_numpy(zero_copy_only=False)
        return removed


class Partition:
    """Files of a chain, in order, that hold all records of their ids; usually a group's shard.

    They are all row files, or all admission files.
    """

    def __init__(
        self,
        group: str,
        shard: int,
        num_shards: int,
        files: Sequence[RowFile],
        *,
        like: Partition | None = None,
    ) -> None:
        """Takes at least one file; may take none if it is `like` another partition."""
        self.group = group
        self.shard = shard
        self.num_shards = num_shards
        self.files = list(files)
        self.tables: list[str] = (
            like.tables
            if like is not None
            else sorted({name for file in files for name in file.tables})
        )
        first = self.files[0] if like is None else like.files[0]
        self.schema = _without_removed(first.schema)
        self._metadata = first.schema.metadata
        for file in self.files:
            if _layout(file.schema) != _layout(first.schema):
                raise CorruptCheckpointError(
                    f"{file.path}: expected the columns of {first.path}, "
                    f"found {file.schema.remove_metadata()}"
                )

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """Returns the schema metadata of a row file with the rows of all files."""
        return with_tables(self._metadata, self.tables)

    def as_stored(self) -> Partition:
        """Returns a partition that yields floats as the files store them.

        If the files have several encodings, returns this partition, which decodes floats: the
        stored values of different encodings cannot be mixed in one file.
        """
        if len({file.encoding for file in self.files}) > 1:
            return self
        files = [RowFile(file.path, decoded=False) for file in self.files]
        return Partition(self.group, self.shard, self.num_shards, files)

    def of(self, files: Sequence[RowFile]) -> Partition:
        """Returns a partition of some of the files, with the same tables."""
        return Partition(self.group, self.shard, self.num_shards, files, like=self)

    def as_rows(self, file: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Turns records of a file into rows: the partition's tables, no column `removed`."""
        return self._rows(self._to_ours(self.files[file])[table_codes(batch)], batch)

    def records(self) -> Iterator[NumberedBatch]:
        """Yields every record in order, removals too."""
        first = 0
        for file in self.files:
            to_ours = self._to_ours(file)
            for batch in file.batches():
                yield NumberedBatch(first, to_ours[table_codes(batch)], batch)
                first += batch.num_rows

    def live(self, table: str | None = None) -> np.ndarray:
        """Tells which records are live rows, of one table if given: bool [num_records]."""
        num_records = sum(records.batch.num_rows for records in self.records())
        live = np.zeros(num_records, bool)
        for _, winners, removed in winners_by_bucket([self], [num_records]):
            live[winners[0][~removed[0]]] = True
        if table is not None:
            wanted = self.tables.index(table) if table in self.tables else -1
            for records in self.records():
                live[records.first : records.first + len(records.tables)] &= (
                    records.tables == wanted
                )
        return live

    def rows(self, table: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows in the order of their last records, of one table if given."""
        live = self.live(table)
        for records in self.records():
            batch = records.batch
            mask = live[records.first : records.first + batch.num_rows]
            if mask.any():
                whole = self._rows(records.tables, batch)
                yield whole if mask.all() else whole.filter(pa.array(mask))

    def _to_ours(self, file: RowFile) -> np.ndarray:
        return np.array([self.tables.index(name) for name in file.tables], np.int64)

    def _rows(self, tables: np.ndarray, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = pa.DictionaryArray.from_arrays(
            pa.array(tables.astype(np.int16)), pa.array(self.tables)
        )
        return pa.RecordBatch.from_arrays([names, *batch.columns[1:-1]], schema=self.schema)


def winners_by_bucket(
    parts: Sequence[Partition], num_records: Sequence[int]
) -> Iterator[tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]]:
    """Finds the last record of each key, one bucket of keys at a time, the same in each partition.

    Yields:
      For each partition: the keys (int64 [n, 2]: table and id, ascending), the number of each key's
      last record, and whether that record is a removal.
    """
    buckets = max(1, -(-sum(num_records) // MAX_KEYS))
    for bucket in range(buckets):
        keys, winners, removed = [], [], []
        for part in parts:
            found = [_in_bucket(records, bucket, buckets) for records in part.records()]
            tables, ids, numbers, gone = (
                np.concatenate([each[i] for each in found]) if found else np.zeros(0, np.int64)
                for i in range(4)
            )
            order = np.lexsort((ids, tables))  # stable: of equal keys the last record is last
            tables, ids = tables[order], ids[order]
            same = (ids[1:] == ids[:-1]) & (tables[1:] == tables[:-1])
            last = np.append(~same, True)[: len(order)]
            keys.append(np.stack([tables[last], ids[last]], axis=1))
            winners.append(numbers[order][last])
            removed.append(gone[order][last].astype(bool))
        yield keys, winners, removed


def make_partitions(directory: CheckpointDirectory, saves: Sequence[SaveSet]) -> list[Partition]:
    """Splits a chain's files into partitions that share no ids.

    If all saves have the same groups and shards, a partition is one shard of one group. Otherwise,
    such as after a restore onto another number of shards, it is all files of a group and of the
    groups that share tables with it.

    Raises:
      CorruptCheckpointError: a file is absent, is not a row file, or has other columns than the
        first file of its partition.
    """
    return _partitions(
        [(entry, RowFile(directory.file(entry))) for save in saves for entry in save.files]
    )


def make_admission_partitions(
    directory: CheckpointDirectory, saves: Sequence[SaveSet]
) -> list[Partition]:
    """Splits a chain's admission files as `make_partitions` splits its row files.

    Raises:
      CorruptCheckpointError: a file is absent, or is not an admission file.
    """
    return _partitions(
        [(e, AdmissionFile(directory.file(e))) for save in saves for e in save.admission]
    )


def _partitions(files: Sequence[tuple[FileEntry, RowFile]]) -> list[Partition]:
    found = []
    for groups in _linked([(entry.group, file.tables) for entry, file in files]):
        mine = [(entry, file) for entry, file in files if entry.group in groups]
        shards = [_shard_of(entry) for entry, _ in mine]
        name = mine[0][0].group
        if len(groups) == 1 and len({of for _, of in shards}) == 1:
            for shard in sorted(set(shards)):
                chosen = [file for (_, file), at in zip(mine, shards, strict=True) if at == shard]
                found.append(Partition(name, *shard, chosen))
        else:
            found.append(Partition(name, 0, 1, [file for _, file in mine]))
    return found


def stream_table(
    directory: CheckpointDirectory, manifest: Manifest, name: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Streams the rows of one table in batches, in no particular order, without column `table`.

    Returns:
      The batches' schema, and the batches.

    Raises:
      CheckpointError: the manifest has no such table.
    """
    names = sorted(table["name"] for table in manifest.tables)
    if name not in names:
        raise CheckpointError(f"manifest {manifest.number} has no table {name!r}, it has {names}")
    parts = [part for part in make_partitions(directory, manifest.chain) if name in part.tables]
    if not parts:
        raise CheckpointError(f"manifest {manifest.number} has no files of table {name!r}")
    return parts[0].schema.remove(0), (
        batch.drop_columns(["table"]) for part in parts for batch in part.rows(name)
    )


def _in_bucket(
    records: NumberedBatch, bucket: int, buckets: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Selects the records in a bucket: tables, ids, the records' numbers, removals."""
    tables, ids, removed = records.tables, records.ids, records.removed
    numbers = np.arange(records.first, records.first + len(ids))
    if buckets == 1:
        return tables, ids, numbers, removed
    # The high bits of a product, because ids may share their low bits.
    mixed = (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    mine = mixed % np.uint64(buckets) == bucket
    return tables[mine], ids[mine], numbers[mine], removed[mine]


def _linked(members: Sequence[tuple[str, Sequence[str]]]) -> list[set[str]]:
    """Merges groups that share a table: sets of groups, in order."""
    found: list[tuple[set[str], set[str]]] = []
    for group, tables in members:
        linked = [each for each in found if group in each[0] or each[1] & set(tables)]
        merged = (
            {group}.union(*(g for g, _ in linked)),
            set(tables).union(*(t for _, t in linked)),
        )
        at = found.index(linked[0]) if linked else len(found)
        found = [each for each in found if each not in linked]
        found.insert(at, merged)
    return [groups for groups, _ in found]


def _shard_of(entry: FileEntry) -> tuple[int, int]:
    name = entry.path.rsplit("/", 1)[-1]
    match = next((m for pattern in _SHARD_NAMES if (m := pattern.fullmatch(name))), None)
    if match is None:
        raise CorruptCheckpointError(
            f"{entry.path}: expected a name like {constants.shard_file_name(0, 1)}, found another"
        )
    return int(match[1]), int(match[2])


def _without_removed(schema: pa.Schema) -> pa.Schema:
    return schema.remove_metadata().remove(schema.get_field_index("removed"))


def _layout(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]
