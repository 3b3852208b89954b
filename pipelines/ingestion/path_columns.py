"""Reads columns that stand in a file's path, as Hive and Spark write them: `day=2024-05-01/`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import unquote

import pyarrow as pa

_MISSING = "__HIVE_DEFAULT_PARTITION__"


def path_columns(file_name: str, names: Iterable[str]) -> dict[str, str | None]:
    """Finds those of the columns that the path's folders have; None is a missing value."""
    wanted = set(names)
    found: dict[str, str | None] = {}
    for folder in file_name.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals and unquote(name) in wanted:
            found[unquote(name)] = None if value == _MISSING else unquote(value)
    return found


def with_path_columns(batch: pa.RecordBatch, found: Mapping[str, str | None]) -> pa.RecordBatch:
    """Returns a file's batch with the path's columns that it lacks, as texts."""
    for name, value in found.items():
        if name not in batch.schema.names:
            texts = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
            batch = batch.append_column(name, texts)
    return batch
