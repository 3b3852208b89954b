"""Makes datasets of rows in memory, of Arrow or tf.data, as a Parquet file of them gives."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedps import config_fields
from embedps.config_fields import options_of
from embedps.console.lines import say
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.features.table_schema import Table

from .make_dataset import make_dataset
from .options import Options
from .sample_columns import read_sample
from .schema_proposal import in_short, propose

FILE_NAME = "rows.parquet"
_ROW_GROUP_ROWS = 1 << 16
_GIVEN = ("input", "output", "schema", "eval_input")
_SAMPLE_ROWS = 100_000
_ROWS_AT_ONCE = 4096

Schema = Mapping[str, Any] | Path | str | None


def from_arrow(
    rows: Any, directory: Path | str, schema: Schema, options: Mapping[str, Any]
) -> Dataset:
    """Makes a dataset of an Arrow table, as `Dataset.from_arrow` says."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    elif hasattr(rows, "__arrow_c_stream__"):  # of Polars, DuckDB, a reader of Arrow
        rows = pa.table(rows)
    if not isinstance(rows, pa.Table):
        raise UsageError(f"rows must be an Arrow table or batch, got {type(rows).__name__}")
    for i, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type) and not pa.types.is_string(field.type.value_type):
            rows = rows.set_column(i, field.name, _decoded(rows.column(i)))
    return _make(rows.schema.remove_metadata(), iter([rows]), directory, schema, options)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Gives the values of dictionaries, as no Parquet file has some kinds of these."""
    kind = column.type.value_type
    kind = pa.string() if pa.types.is_string_view(kind) else kind
    return pa.chunked_array(
        [each.dictionary.cast(kind).take(each.indices) for each in column.chunks], kind
    )


def from_pandas(
    rows: Any, directory: Path | str, schema: Schema, options: Mapping[str, Any]
) -> Dataset:
    """Makes a dataset of a DataFrame, as `Dataset.from_pandas` says."""
    import pandas as pd

    if not isinstance(rows, pd.DataFrame):
        raise UsageError(f"rows must be a pandas.DataFrame, got {type(rows).__name__}")
    if named := [str(name) for name in rows.index.names if name is not None]:
        index = f"the index {', '.join(named)} is left out: reset_index() makes it a column"
        say(index, file=sys.stderr)
    if rows.columns.is_unique:
        rows = rows.copy(deep=False)
        for name in rows.columns:
            values = rows[name]
            kind = values.dtype
            kinds = kind.categories.dtype if isinstance(kind, pd.CategoricalDtype) else kind
            if isinstance(kinds, pd.IntervalDtype):
                rows[name] = values.astype(object).map(str, na_action="ignore")
            elif isinstance(kind, pd.PeriodDtype):
                rows[name] = values.dt.to_timestamp()
    try:
        table = pa.Table.from_pandas(rows, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        message = " ".join(str(error).split())
        raise UsageError(f"rows must be a DataFrame that Arrow can hold: {message}") from None
    return from_arrow(table, directory, schema, options)


def from_tf_data(
    rows: Any, directory: Path | str, schema: Schema, options: Mapping[str, Any]
) -> Dataset:
    """Makes a dataset of a tf.data.Dataset, as `Dataset.from_tf_data` says."""
    if not hasattr(rows, "element_spec"):
        raise UsageError(f"rows must be a tf.data.Dataset, got {type(rows).__name__}")
    if int(rows.cardinality()) == -1:
        raise UsageError(
            "rows must end, and this tf.data.Dataset repeats for ever: leave out repeat"
        )
    specs = _by_column(rows.element_spec)
    ranks = [spec.shape.rank for spec in specs.values()]
    is_batched = all(rank for rank in ranks)
    fields = [_field(name, spec, is_batched) for name, spec in specs.items()]
    found = pa.schema(fields)
    parts = _batches(rows, found) if is_batched else _single_rows(rows, found)
    return _make(found, parts, directory, schema, options)


def _make(
    columns: pa.Schema,
    parts: Iterator[pa.Table],
    directory: Path | str,
    schema: Schema,
    options: Mapping[str, Any],
) -> Dataset:
    _check_names(options)
    with tempfile.TemporaryDirectory(prefix="embedps-") as folder:
        path = Path(folder) / FILE_NAME
        with pq.ParquetWriter(path, columns) as writer:
            for part in parts:
                writer.write_table(part.cast(columns), row_group_size=_ROW_GROUP_ROWS)
        values = {**options, "input": (str(path),), "output": Path(directory)}
        table = _table(schema, path, values.pop("label", None))
        with _quiet_beam():
            return make_dataset(config_fields.make(Options, values, declared=table))[0]


@contextlib.contextmanager
def _quiet_beam() -> Iterator[None]:
    """Keeps Beam from logging the traceback of an error that is raised anyway."""
    beam = logging.getLogger("apache_beam")
    before = beam.level
    if beam.getEffectiveLevel() > logging.DEBUG:
        beam.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        beam.setLevel(before)


def _check_names(options: Mapping[str, Any]) -> None:
    known = ["label", *(each.name for each in options_of(Options) if each.name not in _GIVEN)]
    for name in options:
        if name not in known:
            raise UsageError(
                f"there is no option {name!r} of rows in memory, there are {', '.join(known)}"
            )


def _table(schema: Schema, path: Path, label: str | None) -> Table:
    """Returns the declared table, or one that is proposed of the rows; its format is Parquet."""
    if schema is None:
        sample = read_sample(str(path), _SAMPLE_ROWS)
        proposed = propose(sample, label)
        say(f"the schema is proposed of the rows: {in_short(proposed)}", file=sys.stderr)
        schema = {"name": "proposed"} | tomllib.loads(proposed)
        if not any(column["as"] == "label" for column in schema["column"]):
            say("no column looks like a label: give label='COLUMN' to train", file=sys.stderr)
    elif label is not None:
        raise UsageError(f"the schema declares the labels: leave out label={label!r}")
    if isinstance(schema, Mapping):
        return Table.parse({"format": "parquet"} | {**schema, "format": "parquet"})
    return dataclasses.replace(Table.load(str(schema)), format="parquet", encoding="utf-8")


def _by_column(element: Any) -> dict[str, Any]:
    """Names the parts of an element: columns, then a label and a weight if it has them."""
    features, *others = element if isinstance(element, tuple) else (element,)
    if not isinstance(features, Mapping) or len(others) > 2:
        raise UsageError(
            "a tf.data.Dataset must have elements that are a dict by column, or (dict, label) or "
            f"(dict, label, weight), got {_shown_kind(element)}"
        )
    found = dict(features)
    for name, part in zip(("label", "weight"), others, strict=False):
        parts = part if isinstance(part, Mapping) else {name: part}
        if twice := parts.keys() & found.keys():
            raise UsageError(f"a column must be there once, {', '.join(sorted(twice))} is twice")
        found |= parts
    return found


def _shown_kind(element: Any) -> str:
    names = [
        type(part).__name__ for part in (element if isinstance(element, tuple) else (element,))
    ]
    return f"({', '.join(names)})"


def _field(name: str, spec: Any, is_batched: bool) -> pa.Field:
    """Returns the Arrow field of a column."""
    rank = spec.shape.rank
    if rank is None or not hasattr(spec, "dtype") or "Sparse" in type(spec).__name__:
        raise UsageError(
            f"column {name!r} must be a dense or ragged tensor of known rank, got {spec}: "
            "tf.RaggedTensor.from_sparse makes one ragged"
        )
    kind = spec.dtype.as_numpy_dtype
    arrow = pa.binary() if kind in (object, np.object_, bytes) else pa.from_numpy_dtype(kind)
    for _ in range(rank - is_batched):
        arrow = pa.list_(arrow)
    return pa.field(name, arrow)


def _batches(rows: Any, columns: pa.Schema) -> Iterator[pa.Table]:
    for element in rows:
        found = _by_column(element)
        arrays = [_array(found[field.name], field.type) for field in columns]
        if len({*map(len, arrays)}) > 1:
            sizes = ", ".join(f"{f.name} {len(a)}" for f, a in zip(columns, arrays, strict=True))
            raise UsageError(f"the columns of a batch must have as many rows each, got {sizes}")
        yield pa.table(arrays, schema=columns)


def _array(value: Any, kind: pa.DataType) -> pa.Array:
    """Makes an array of a batch: dense of any rank, or ragged."""
    if hasattr(value, "nested_row_splits"):
        splits, value = [each.numpy() for each in value.nested_row_splits], value.flat_values
    else:
        splits = []
    value = value.numpy()
    inner = value.shape[1:]
    array = pa.array(value.reshape(-1), _element(kind))
    for depth in reversed(range(len(inner))):
        num_lists = len(value) * int(np.prod(inner[:depth], dtype=np.int64))
        offsets = np.arange(num_lists + 1) * inner[depth]
        array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), array)
    for offsets in reversed(splits):
        array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), array)
    return array


def _element(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return kind


def _single_rows(rows: Any, columns: pa.Schema) -> Iterator[pa.Table]:
    elements = map(_by_column, rows)
    while part := list(itertools.islice(elements, _ROWS_AT_ONCE)):
        arrays = [pa.array([_value(row[f.name]) for row in part], f.type) for f in columns]
        yield pa.table(arrays, schema=columns)


def _value(value: Any) -> Any:
    if hasattr(value, "to_list"):
        return value.to_list()
    found = value.numpy()  # a text's is bytes
    return found.tolist() if isinstance(found, np.ndarray | np.generic) else found
