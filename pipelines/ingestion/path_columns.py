"""Reads columns that stand in a file's path, as Hive and Spark write them: `day=2024-05-01/`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from embedps.errors import DatasetError
from embedps.features.decode import decode_column
from embedps.features.table_schema import Table

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


def given_columns(table: Table, file_name: str) -> dict[str, str | None]:
    """Finds the columns whose value the path or the schema has, where the file does not."""
    declared = {column.name: column.value for column in table.columns if column.value}
    return declared | path_columns(file_name, (column.name for column in table.columns))


def check_path_columns(table: Table, rows: pa.RecordBatch, file_name: str) -> None:
    """Compares decoded rows with the path of their file.

    Raises:
      DatasetError: a column is in the file and in its path, and the values differ.
    """
    for name, text in path_columns(file_name, rows.schema.names).items():
        value, bad = decode_column(table.column(name), pa.array([text], pa.string()), table.missing)
        found = rows.column(name)
        if bad or found.equals(value.take(pa.array(np.zeros(len(found), np.int64)))):
            continue
        others = [each for each in found.to_pylist() if not _equal(each, value[0].as_py())]
        if others:
            raise DatasetError(
                f"{file_name}: column {name!r} must be the same in the file and in its path, but "
                f"it is {others[0]!r} in a row and {text!r} ({value[0].as_py()!r}) in the path: "
                "correct one, or leave the column out of the schema"
            )


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))  # NaN is a missing number


def with_path_columns(batch: pa.RecordBatch, found: Mapping[str, str | None]) -> pa.RecordBatch:
    """Returns a file's batch with the path's columns that it lacks, as texts."""
    for name, value in found.items():
        if name not in batch.schema.names:
            texts = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
            batch = batch.append_column(name, texts)
    return batch
