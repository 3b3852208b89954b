"""What pyarrow raises for a file that it cannot read, and the one line that users get instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from embedps.errors import DatasetError

UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError, RuntimeError)
"""UnicodeDecodeError: of a column's name. RuntimeError: of C++, for some damaged footers."""


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Names the shard that cannot be read in the block; raises DatasetError."""
    try:
        yield
    except UNREADABLE as error:
        message = " ".join(str(error).split())
        raise DatasetError(f"{path} cannot be read: {message}: make the dataset again") from error


def check_statistics(file: pq.ParquetFile, column: str) -> None:
    """Reads a row of a column in each row group, before its statistics are asked for.

    Asked for those of some damaged footers, pyarrow ends the process: it lets an exception of C++
    pass. A read raises one of UNREADABLE there, but it reads nothing of a row group that says it
    has no rows: its statistics must not be asked for.
    """
    for group in range(file.num_row_groups):
        next(file.iter_batches(1, row_groups=[group], columns=[column]), None)
