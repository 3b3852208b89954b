"""Reads admission files without the kernels: the counters of ids without a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from embedps import constants
from embedps.checkpoint.format import lengths
from embedps.checkpoint.format.quantize import FLOAT32, Encoding
from embedps.checkpoint.format.rows import MAX_BATCH_RECORDS, tables_in, unreadable
from embedps.errors import CorruptCheckpointError
from embedps.storage import file_io
from embedps.storage.object_store import as_path

_VERSION_KEY = constants.ADMISSION_FILE_VERSION_KEY.encode()
_VERSION = constants.ADMISSION_FILE_VERSION.encode()
_FIELDS = {
    "table": pa.dictionary(pa.int16(), pa.string()),
    "id": pa.int64(),
    "count": pa.uint32(),
    "last_step": pa.uint32(),
    "removed": pa.bool_(),
}
_RECORD_BYTES = 20
_SLACK_BYTES = 1 << 20
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, *lengths.MALFORMED)


class AdmissionFile:
    """A memory-mapped admission file, which reads its batches on demand as `RowFile` does.

    Attributes:
      path: the file's path.
      schema: of the batches.
      encoding: none; for code that also takes row files.
    """

    encoding: Encoding = FLOAT32

    def __init__(self, path: Path | str) -> None:
        """Opens a file and checks its schema.

        Raises:
          CorruptCheckpointError: it is absent, or not an admission file; names path, field,
            expected and found.
        """
        self.path = as_path(path)
        try:
            file = file_io.store_of(self.path).open_arrow(self.path)
            self._reader = pa.ipc.open_file(file)
            self._blocks = lengths.Blocks(file)
            self.schema: pa.Schema = self._reader.schema
            found = [*zip(self.schema.names, self.schema.types, strict=True)]
        except _ARROW_ERRORS as error:
            raise unreadable(self.path, error) from error
        version = (self.schema.metadata or {}).get(_VERSION_KEY)
        if version != _VERSION or found != list(_FIELDS.items()):
            raise CorruptCheckpointError(
                f"{self.path}: expected an admission file of version {_VERSION.decode()} with "
                f"columns {_FIELDS}, found version {version!r} with {found}"
            )

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
          CorruptCheckpointError: the batch is damaged; names path, batch, field, expected, found.
        """
        where = f"record batch {index}"
        most = MAX_BATCH_RECORDS * _RECORD_BYTES + _SLACK_BYTES
        try:
            size = self._blocks.decompressed_bytes(self._blocks.batches[index])
            if size > most:
                raise CorruptCheckpointError(
                    f"{self.path}: {where}: expected at most {most} bytes of decompressed "
                    f"buffers, found {size}"
                )
            batch = self._reader.get_batch(index)
            batch.validate(full=True)
            tables = batch["table"].dictionary.to_pylist()
        except _ARROW_ERRORS as error:
            raise unreadable(self.path, error, where) from error
        if tables != self.tables:
            raise CorruptCheckpointError(
                f"{self.path}: {where}: field 'table': expected the dictionary {self.tables}, "
                f"found {tables}"
            )
        for name in batch.schema.names:
            if batch[name].null_count:
                raise CorruptCheckpointError(
                    f"{self.path}: {where}: field {name!r}: expected no nulls, "
                    f"found {batch[name].null_count}"
                )
        return batch

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields each batch that has records, in order."""
        batches = (self.batch(i) for i in range(self.num_batches))
        return (batch for batch in batches if batch.num_rows)
