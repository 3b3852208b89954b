"""What pyarrow raises for a file that it cannot read, and the one line that users get instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from embedps.errors import DatasetError

UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""UnicodeDecodeError: of a column's name."""


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Names the shard that cannot be read in the block; raises DatasetError."""
    try:
        yield
    except UNREADABLE as error:
        message = " ".join(str(error).split())
        raise DatasetError(f"{path} cannot be read: {message}: make the dataset again") from error
