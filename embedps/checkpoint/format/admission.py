"""Reads admission files without the kernels: the counters of ids without a row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from embedps import constants
from embedps.checkpoint.format import lengths
from embedps.checkpoint.format.quantize import FLOAT32, Encoding
from embedps.checkpoint.format.rows import ARROW_ERRORS, RowFile, most_bytes, unreadable
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


class AdmissionFile(RowFile):
    """A memory-mapped admission file: read as a row file is, but a record is a counter."""

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
            self._decoded, self._max_bytes = False, most_bytes(_RECORD_BYTES)
            self.schema: pa.Schema = self._reader.schema
            found = [*zip(self.schema.names, self.schema.types, strict=True)]
        except ARROW_ERRORS as error:
            raise unreadable(self.path, error) from error
        version = (self.schema.metadata or {}).get(_VERSION_KEY)
        if version != _VERSION or found != list(_FIELDS.items()):
            raise CorruptCheckpointError(
                f"{self.path}: expected an admission file of version {_VERSION.decode()} with "
                f"columns {_FIELDS}, found version {version!r} with {found}"
            )
