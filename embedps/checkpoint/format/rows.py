"""Reads row files without the kernels, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from embedps import constants
from embedps.checkpoint.format import lengths
from embedps.checkpoint.format.quantize import Encoding, decode, encoding_of, stored_type
from embedps.errors import CorruptCheckpointError
from embedps.storage import file_io
from embedps.storage.object_store import as_path

_FIRST = {"table": pa.dictionary(pa.int16(), pa.string()), "id": pa.int64()}
_LAST = {"last_step": pa.uint32(), "frequency": pa.uint32(), "removed": pa.bool_()}
_TABLE_KEY = constants.ROW_FILE_TABLE_KEY_PREFIX
MAX_BATCH_RECORDS = constants.MAX_ROW_FILE_BATCH_ROWS
_NUM_TABLES_KEY = constants.ROW_FILE_NUM_TABLES_KEY.encode()
# A batch's bytes besides its records: the tables' names, and the padding of each buffer.
_SLACK_BYTES = 1 << 20
# ValueError: a name is not valid UTF-8.
ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, *lengths.MALFORMED)


class RowFile:
    """A memory-mapped row file, which reads its batches on demand.

    Attributes:
      path: the file's path.
      schema: of the batches.
      encoding: of the file.
    """

    def __init__(self, path: Path | str, *, decoded: bool = True) -> None:
        """Opens a row file and checks its schema.

        Args:
          decoded: if true, batches have all floats as float32; otherwise, as they are stored.

        Raises:
          CorruptCheckpointError: it is absent, or not a row file; names path, field, expected and
            found.
        """
        self.path = as_path(path)
        try:
            file = file_io.store_of(self.path).open_arrow(self.path)
            self._reader = pa.ipc.open_file(file)
            stored = self._reader.schema
            empty = stored.empty_table()
            check_schema(self.path, stored)
            self._blocks = lengths.Blocks(file)
            self._max_bytes = most_bytes(sum(map(_max_bytes, stored)))
            for block in self._blocks.dictionaries:
                self._check_length(block, "dictionary")
        except ARROW_ERRORS as error:
            raise unreadable(self.path, error) from error
        self.encoding: Encoding = encoding_of(self.path, stored)[0]
        self._decoded = decoded
        self.schema: pa.Schema = decode(self.path, empty).schema if decoded else stored

    @property
    def num_batches(self) -> int:
        """Returns the number of record batches, empty ones too."""
        return int(self._reader.num_record_batches)

    @property
    def tables(self) -> list[str]:
        """Lists the tables in the order of the indices that records have."""
        return tables_in(self.path, self.schema)

    def batch(self, index: int) -> pa.RecordBatch:
        """Reads one record batch and checks it.

        Raises:
          CorruptCheckpointError: the batch is damaged; names path, batch, field, expected and
            found.
        """
        where = f"record batch {index}"
        try:
            self._check_length(self._blocks.batches[index], where)
            batch = self._reader.get_batch(index)
            if batch.num_rows > MAX_BATCH_RECORDS:
                raise CorruptCheckpointError(
                    f"{self.path}: {where}: expected at most {MAX_BATCH_RECORDS} records, "
                    f"found {batch.num_rows}"
                )
            batch.validate(full=True)  # else Arrow reads at an index outside of the dictionary
            tables = batch["table"].dictionary.to_pylist()
        except ARROW_ERRORS as error:
            raise unreadable(self.path, error, where) from error
        for name in batch.schema.names:
            if batch[name].null_count:
                raise CorruptCheckpointError(
                    f"{self.path}: {where}: field {name!r}: expected no nulls, "
                    f"found {batch[name].null_count}"
                )
        if tables != self.tables:
            raise CorruptCheckpointError(
                f"{self.path}: {where}: field 'table': expected the dictionary {self.tables}, "
                f"found {tables}"
            )
        if not self._decoded:
            return batch
        table = decode(self.path, pa.Table.from_batches([batch]))
        return table.combine_chunks().to_batches()[0] if batch.num_rows else batch

    def _check_length(self, block: lengths.Block, where: str) -> None:
        found = self._blocks.decompressed_bytes(block)
        if found > self._max_bytes:
            raise CorruptCheckpointError(
                f"{self.path}: {where}: expected at most {self._max_bytes} bytes of decompressed "
                f"buffers, found {found}"
            )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields each batch that has records, in order."""
        batches = (self.batch(i) for i in range(self.num_batches))
        return (batch for batch in batches if batch.num_rows)


def most_bytes(record_bytes: int) -> int:
    """Returns the most bytes that a batch may have, by those of a record."""
    return MAX_BATCH_RECORDS * record_bytes + _SLACK_BYTES


def check_schema(path: Path | str, schema: pa.Schema) -> None:
    """Checks that a schema is a row file's; raises CorruptCheckpointError otherwise."""
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
        width = max(1, kind.list_size) if pa.types.is_fixed_size_list(kind) else 1
        expected = stored_type(encoding, name, dim if dim and name == "embedding" else width)
        if not pa.types.is_fixed_size_list(kind) or (kind.value_type, kind.list_size) != (
            expected.value_type,
            expected.list_size,
        ):
            raise CorruptCheckpointError(
                f"{path}: field {name!r}: expected a fixed_size_list of {expected.value_type}"
                f"[{expected.list_size}], found {kind}"
            )


def tables_in(path: Path, schema: pa.Schema) -> list[str]:
    """Lists the tables that a file's schema metadata names.

    Raises:
      CorruptCheckpointError: it names fewer than it says.
    """
    metadata = schema.metadata
    count = metadata.get(_NUM_TABLES_KEY, b"0")
    # A count of more tables than there is metadata is wrong: nothing is made for it.
    most = len(str(len(metadata)))
    claimed = int(count) if count.isdigit() and len(count) <= most else 0
    keys = [f"{_TABLE_KEY}{i}".encode() for i in range(min(claimed, len(metadata)))]
    if not keys or len(keys) < claimed or any(key not in metadata for key in keys):
        raise CorruptCheckpointError(
            f"{path}: schema metadata {_NUM_TABLES_KEY.decode()!r}: expected as many "
            f"tables as are named, found {count!r}"
        )
    return [metadata[key].decode(errors="replace") for key in keys]


def with_tables(metadata: Mapping[bytes, bytes], tables: Sequence[str]) -> dict[bytes, bytes]:
    """Replaces the tables in a row file's schema metadata."""
    kept = {k: v for k, v in metadata.items() if not k.startswith(_TABLE_KEY.encode())}
    named = {f"{_TABLE_KEY}{i}".encode(): name.encode() for i, name in enumerate(tables)}
    return kept | {_NUM_TABLES_KEY: str(len(tables)).encode()} | named


def table_codes(batch: pa.RecordBatch) -> np.ndarray:
    """Returns each record's index into the tables; int16 [num_records]."""
    codes: np.ndarray = batch["table"].indices.to_numpy(zero_copy_only=False)
    return codes


def by_table(
    batches: Iterable[pa.RecordBatch], tables: Sequence[str]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields the records of each table in each batch.

    Args:
      batches: of a file.
      tables: the file's.
    """
    for batch in batches:
        codes = table_codes(batch)
        for code in np.unique(codes).tolist():
            yield tables[code], batch.filter(pa.array(codes == code))


def _max_bytes(field: pa.Field) -> int:
    """Returns the most bytes of one record in a column."""
    kind = field.type
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size * kind.value_type.bit_width // 8)
    return int(-(-kind.bit_width // 8))


def unreadable(path: Path, error: Exception, where: str = "") -> CorruptCheckpointError:
    """Makes the error of a file that Arrow cannot read."""
    return CorruptCheckpointError(
        f"{path}: {where}{': ' if where else ''}cannot be read as a row file: {error}"
    )
