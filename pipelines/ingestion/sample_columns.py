"""Reads the first rows of a file whose schema nobody has declared: its format and its columns."""

from __future__ import annotations

import contextlib
import csv as python_csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from embedps.data.arrow_errors import UNREADABLE
from embedps.errors import DatasetError
from embedps.features.arrow_kinds import is_list

from .avro_blocks import MAGIC, AvroReader
from .input_files import open_input
from .json_lines import Makers, json_text
from .lake_files import LakeFile
from .line_blocks import LineBlockReader
from .nested_columns import at_keys

_DELIMITERS = (",", "\t", ";", "|", "::")
_SEPARATOR = "\x1f"
_SNIFFED_LINES = 200
_MOST_COLUMNS = 2000
_AVRO_BYTES = 8 << 20
_MOST_KEYS = 16  # that lead to a value
_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}

Columns = dict[tuple[str, ...], pa.Array]
"""Values by the keys that lead to them; lists of lists are not joined."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The first rows of a file.

    `settings` are those of the schema, such as `delimiter`; `skipped` says of columns why they are
    none.
    """

    settings: Mapping[str, Any]
    columns: Columns
    num_rows: int
    skipped: Sequence[str] = ()


def read_table_sample(file: LakeFile, max_rows: int) -> Sample:
    """Reads the first rows of a table of Delta Lake or Iceberg, of one of its files."""
    parts = file.batches(file.schema.names, is_wide=True)
    batch = next((batch for batch, _ in parts if batch.num_rows), None)
    return _of_batch(batch, "parquet", max_rows)


def read_sample(path: str, max_rows: int) -> Sample:
    """Reads a file's first rows.

    Raises:
      DatasetError: it has none, is damaged, or is of no format that ingestion reads.
    """
    with open_input(path) as stream:
        head = stream.read(4)
        stream.seek(0)
        if head.startswith((b"PAR1", b"ORC")):
            return _of_columns(stream, "orc" if head.startswith(b"ORC") else "parquet", max_rows)
        if head == MAGIC:
            return _of_avro(AvroReader(stream, path), max_rows)
        encoding = _MARKS.get(head[:2], "utf-8")
        blocks = iter(LineBlockReader(stream, encoding=encoding, name=path))
        data = next((block.data for block in blocks if block.data), b"")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        encoding, text = "latin-1", data.decode("latin-1")
    if not text.strip():
        raise DatasetError(f"{path}: must have rows to propose a schema of, it has none")
    settings = {} if encoding == "utf-8" else {"encoding": encoding}
    if text.lstrip().startswith("{"):
        return _of_objects(_objects(text.split("\n")), {"format": "jsonl"} | settings, max_rows)
    return _of_text(text, settings, max_rows, path)


def _of_columns(stream: Any, kind: str, max_rows: int) -> Sample:
    try:
        if kind == "orc":
            import pyarrow.orc

            file = pyarrow.orc.ORCFile(stream)
            batch = file.read_stripe(0) if file.nstripes else None
        else:
            batch = next(pq.ParquetFile(stream).iter_batches(max_rows), None)
    except UNREADABLE as error:
        raise DatasetError(f"the {kind} file is damaged: {' '.join(str(error).split())}") from None
    return _of_batch(batch, kind, max_rows)


def _of_batch(batch: pa.RecordBatch | None, kind: str, max_rows: int) -> Sample:
    if batch is None:
        raise DatasetError("the file must have rows to propose a schema of, it has none")
    batch = batch.slice(0, max_rows)
    _check_width(batch.num_columns, f"the {kind} file")
    columns: Columns = {}
    skipped: list[str] = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        for keys, leaf in _leaves((name,), array, skipped):
            columns[keys] = leaf
    settings = {"format": kind}
    return Sample(settings=settings, columns=columns, num_rows=batch.num_rows, skipped=skipped)


def _leaves(
    keys: tuple[str, ...], array: pa.Array, skipped: list[str]
) -> Iterator[tuple[tuple[str, ...], pa.Array]]:
    kind = array.type
    inner = kind.value_type if is_list(kind) else kind
    if pa.types.is_struct(inner):
        for i in range(inner.num_fields):
            name = inner.field(i).name
            yield from _leaves((*keys, name), at_keys(array, [name]), skipped)
    elif pa.types.is_map(inner):
        skipped.append(f"{'.'.join(keys)} is a map: declare a column with the path of each key")
    else:
        yield keys, array


def _of_avro(reader: AvroReader, max_rows: int) -> Sample:
    records: list[dict[str, Any]] = []
    size, schema = 0, None
    for block in reader:
        schema = block.schema
        records += block.found
        size += sum(map(len, block.raw))
        if len(records) >= max_rows or size >= _AVRO_BYTES:
            break
    if not records or schema is None:
        reasons = "; ".join(line.reason for line in block.bad)
        raise DatasetError(
            f"the file must have rows to propose a schema of: {reasons or 'it has none'}"
        )
    return _of_objects(records, {"format": "avro"}, max_rows, schema.makers)


def _objects(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with contextlib.suppress(orjson.JSONDecodeError):
            record = orjson.loads(line)
            if type(record) is dict:
                yield record


def _of_objects(
    records: Iterable[Mapping[str, Any]],
    settings: dict[str, Any],
    max_rows: int,
    makers: Callable[[Sequence[str]], Makers] = lambda keys: {},
) -> Sample:
    found: dict[tuple[str, ...], dict[int, Any]] = {}
    row = 0
    for record in records:
        if row < max_rows:
            for keys, value in _members((), record):
                if keys in found or len(found) < _MOST_COLUMNS:
                    found.setdefault(keys, {})[row] = value
            row += 1
    for keys in [*found]:
        # A list of objects that is empty in some rows.
        is_within = any(other[: len(keys)] == keys != other for other in found)
        if is_within and not any(found[keys].values()):
            del found[keys]
    columns = {
        keys: _array([at.get(i) for i in range(row)], makers(keys)) for keys, at in found.items()
    }
    return Sample(settings=settings, columns=columns, num_rows=row)


def _members(
    keys: tuple[str, ...], record: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in record.items():
        if type(value) is dict:
            if len(keys) < _MOST_KEYS:
                yield from _members((*keys, key), value)
        elif type(value) is list and any(type(each) is dict for each in value):
            objects = [each if type(each) is dict else {} for each in value]
            for name in dict.fromkeys(name for each in objects for name in each):
                yield (*keys, key, name), [each.get(name) for each in objects]
        else:
            yield (*keys, key), value


def _array(values: list[Any], makers: Makers) -> pa.Array:
    types = {*map(type, values)} - {type(None)}
    if len(types) == 1 and (make := makers.get(types.pop())) is not None:
        return make(values)
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        # Of several types: as texts.
        return pa.array([
            v if v is None or type(v) is str else json_text(v) for v in values
        ])  # fmt: skip


def _of_text(text: str, settings: dict[str, Any], max_rows: int, path: str) -> Sample:
    lines = [line for line in text.split("\n", _SNIFFED_LINES)[:_SNIFFED_LINES] if line]
    delimiter = _delimiter(lines)
    if delimiter is None:
        shown = ", ".join(map(repr, _DELIMITERS))
        raise DatasetError(
            f"{path}: its lines must have fields with one of {shown} between, as JSON Lines, "
            "Parquet and ORC need not"
        )
    rows = _rows(lines, delimiter)
    if _is_header([_unlike(rows[0]), *rows[1:]]) and len(set(rows[0])) < len(rows[0]):
        repeated = ", ".join(sorted({repr(n) for n in rows[0] if rows[0].count(n) > 1}))
        raise DatasetError(
            f"{path}: its first line must name each column once, but {repeated} is repeated: "
            "rename or drop one"
        )
    has_header = _is_header(rows)
    _check_width(len(rows[0]), path)
    names = rows[0] if has_header else [f"c{i}" for i in range(len(rows[0]))]
    if has_header:
        text = text.partition("\n")[2]
    if len(delimiter) > 1:
        settings = settings | {"quote": ""}
        text = text.replace(delimiter, _SEPARATOR)
    data = text.encode()
    table = csv.read_csv(
        pa.BufferReader(data),
        read_options=csv.ReadOptions(column_names=names, block_size=len(data) + 1),
        parse_options=csv.ParseOptions(
            delimiter=delimiter if len(delimiter) == 1 else _SEPARATOR,
            quote_char=False if len(delimiter) > 1 else '"',
            newlines_in_values=True,
            invalid_row_handler=lambda row: "skip",
        ),
        convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    ).slice(0, max_rows)
    return Sample(
        settings={"format": "csv", "delimiter": delimiter, "header": has_header} | settings,
        columns={(name,): table[i].combine_chunks() for i, name in enumerate(names)},
        num_rows=table.num_rows,
    )


def _check_width(num_columns: int, where: str) -> None:
    if num_columns > _MOST_COLUMNS:
        raise DatasetError(
            f"{where}: must have at most {_MOST_COLUMNS:,} columns to propose a schema of, it has "
            f"{num_columns:,}: declare several alike by names = [...] in a schema of your own"
        )


def _delimiter(lines: Sequence[str]) -> str | None:
    """Chooses the delimiter that gives most lines the same number of fields, then the most."""
    scores = {}
    for each in _DELIMITERS:
        rows = _rows(lines, each)
        ((number, times),) = Counter(map(len, rows)).most_common(1)
        if number > 1 and times > 0.8 * len(rows):
            scores[each] = (times, number)
    return max(scores, key=lambda each: scores[each], default=None)


def _rows(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """Splits lines into fields, which may hold line breaks within quotes."""
    if len(delimiter) > 1:
        return [line.split(delimiter) for line in lines]
    try:
        return [*python_csv.reader(lines, delimiter=delimiter)]
    except python_csv.Error:
        return [line.split(delimiter) for line in lines]


def _unlike(names: Sequence[str]) -> list[str]:
    """Tells repeated names apart."""
    return [f"{name}{i}" if name in names[:i] else name for i, name in enumerate(names)]


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Tells whether the first line names the columns: it has no numbers, as columns have none."""
    first, *others = rows
    named = [x for x in first if x.strip()]  # an index that pandas writes has no name
    if len(set(first)) < len(first) or not named or any(map(_NUMBER.fullmatch, named)):
        return False
    same = [row for row in others if len(row) == len(first)]
    columns = [[row[i] for row in same] for i in range(len(first))]
    has_numbers = any(all(_NUMBER.fullmatch(x) for x in c if x) and any(c) for c in columns)
    return has_numbers or not any(x in c for x, c in zip(first, columns, strict=True))
