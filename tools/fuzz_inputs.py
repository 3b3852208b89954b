"""Fuzz targets of what users hand in: schemas, options, logs, tables, shards and items."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import io
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedps.console import flags
from embedps.data.arrow_errors import UNREADABLE
from embedps.data.dataset import FILE_NAME, Dataset
from embedps.data.dataset_metadata import CategoricalFeature, DataFile, NumericFeature, Split
from embedps.data.transforms_digest import read_digest, read_ids
from embedps.errors import EmbedpsError
from embedps.features import transforms
from embedps.features.table_schema import Table
from embedps.features.transforms import Transforms
from embedps.pipelines.ingestion.bad_lines import BadLine
from embedps.pipelines.ingestion.json_lines import JsonLineParser
from embedps.pipelines.ingestion.line_blocks import LineBlock, LineBlockReader
from embedps.pipelines.ingestion.line_parser import LineParser
from embedps.pipelines.ingestion.quoted_records import Records
from embedps.pipelines.ingestion.raw_records import RawReader
from embedps.pipelines.report.profile import make_profile
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.event_clock import EventClock
from embedps.scheduling.ledger import Ledger
from tools.fuzz_folders import in_folder, in_memory

TABLE = """
missing = ["", "NA"]
header = "auto"
[[column]]
name = "bought"
as = "label"
[[column]]
name = "time"
as = "timestamp"
type = "text"
format = "iso"
[[column]]
name = "price"
as = "numeric"
transform = ["log1p", { clip = [0.5, 4] }]
[[column]]
name = "age"
as = "numeric"
type = "integer"
transform = [{ bucketize = [18, 40, 65] }, { hash = 3 }]
[[column]]
name = "site"
as = "categorical"
type = "hex"
[[column]]
name = "pages"
as = "list"
type = "string"
separator = "|"
[[column]]
name = "rates"
as = "float_list"
[[column]]
name = "user"
as = "key"
type = "integer"
keep = true
[[feature]]
name = "hour"
from = "time"
transform = ["hour"]
"""
LINES = (("", ","), ('"', ","), ("'", "\t"), ("", "::"), ("", ""))
"""Quotes and delimiters of the logs, none of JSON; the first byte of an input chooses."""

SHARD = "train/shard.parquet"
"""The path of a dataset's only shard."""


def schema(data: bytes) -> None:
    """Reads a table's schema in TOML."""
    with in_folder("schema.toml", data) as folder:
        read = Table.load(str(folder / "schema.toml"))
    if Table.parse(read.to_json()) != read:
        raise AssertionError("a schema that is read must be written and read again")
    read.output_schema.field(0)


def options(data: bytes) -> None:
    """Reads the options of a run and its model in TOML."""
    from embedps.models import dlrm
    from embedps.run.config import TrainConfig

    with in_folder("options.toml", data) as folder:
        values = flags.read_file(str(folder / "options.toml"), TrainConfig, dlrm.Config)
    for config in (TrainConfig, dlrm.Config):
        flags.make(config, argparse.Namespace(), values)


def stored_transforms(data: bytes) -> None:
    """Reads a dataset's `_transforms.json`, and applies it."""
    with in_folder(transforms.FILE_NAME, data) as folder:
        ids = folder / transforms.FOLDER_NAME / "site.arrow"
        if not ids.exists():
            ids.parent.mkdir(parents=True, exist_ok=True)
            ids.write_bytes(_kept_ids())
        digest = None
        with contextlib.suppress(EmbedpsError):
            digest, _ = read_digest(folder / transforms.FILE_NAME)
        read = Transforms.load(folder)
        if read.table.to_json() == json.loads(data)["table"] and digest != read.digest:
            raise AssertionError(f"{digest} and {read.digest} are of the same transforms")
        texts = {name: ["1", "", "7"] for f in read.table.features for name in f.sources}
        read.apply(pa.RecordBatch.from_pydict(texts))


def _kept_ids() -> bytes:
    batch = pa.record_batch({"id": np.array([3, 5, 7], np.int64)})
    out = io.BytesIO()
    with pa.ipc.new_file(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


def kept_ids(data: bytes) -> None:
    """Reads the ids that a step keeps."""
    with in_memory(data) as path:
        np.isin(3, read_ids(path))


def lines(data: bytes) -> None:
    """Reads a log of text or JSON, packed or not; the first byte chooses its quotes."""
    quote, delimiter = LINES[data[0] % len(LINES) if data else 0]
    table, reader = _text_reader(quote, delimiter)
    data = data[1:]
    parser = (LineParser if delimiter else JsonLineParser)(table, "log")
    num_rows, lines_bad = 0, set[int]()  # the parts of a long line share its number
    blocks = LineBlockReader(
        io.BytesIO(data), block_bytes=256, delimiter=delimiter, quote=quote, name="log"
    )
    for block in blocks:
        rows, bad = parser.parse(block)
        if not delimiter:
            _check_objects(table, block, rows, bad)
        num_rows += rows.num_rows
        lines_bad |= {line.line for line in (*bad, *block.bad)}
        if block.records is not None:
            _check_records(block.data, block.records, ord(quote), ord(delimiter))
    if num_rows + len(lines_bad) + parser.num_header_lines != blocks.num_records:
        raise AssertionError(f"{num_rows} rows, {lines_bad} bad, {blocks.num_records} records")
    with in_memory(data) as path:
        for _ in reader.read(path):
            pass


def _check_objects(
    table: Table, block: LineBlock, rows: pa.RecordBatch, bad: Sequence[BadLine]
) -> None:
    """Compares a block of JSON with its lines, each parsed alone."""
    found = []
    for at, line in enumerate(block.data.split(b"\n")[:-1]):
        alone = LineBlock(first_line=block.first_line + at, num_lines=1, data=line + b"\n")
        found.append(JsonLineParser(table, "log").parse(alone))
    if [line for _, each in found for line in each] != list(bad):
        raise AssertionError("lines that are bad alone must be bad for the same reason")
    parts = pa.Table.from_batches([each for each, _ in found], schema=table.row_schema)
    if repr(parts.to_pylist()) != repr(rows.to_pylist()):
        raise AssertionError("lines must give the same rows alone")


def _check_records(data: bytes, records: Records, quote: int, delimiter: int) -> None:
    """Compares records with those of a scanner that goes byte by byte."""
    start = 0
    for at, end in enumerate(records.ends.tolist()):
        if not start < end or data[end - 1] != ord("\n"):
            raise AssertionError("a record must end in a line break")
        if at not in records.reasons and _breaks_outside(data[start:end], quote, delimiter):
            raise AssertionError("a good record must have its only line break at its end")
        start = end
    if start != len(data):
        raise AssertionError("all lines of a block must be of records")


def _breaks_outside(record: bytes, quote: int, delimiter: int) -> bool:
    """Tells whether a record has a line break outside of quotes, or an open quote, at its end."""
    alone = [bytes([quote, after]) for after in (delimiter, *b"\r\n")]
    is_open, may_open = False, True
    for place, byte in enumerate(record):
        if may_open and not is_open and record[place : place + 2] in alone:
            return False  # a quote that is a field by itself, or one of several: both are right
        if byte == quote and (is_open or may_open):
            is_open, may_open = not is_open, is_open
        elif byte == ord("\n") and not is_open:
            return place != len(record) - 1
        else:
            may_open = byte == delimiter
    return True


@functools.cache
def _text_reader(quote: str, delimiter: str) -> tuple[Table, RawReader]:
    table = Table.parse(tomllib.loads(TABLE))
    if delimiter:
        table = dataclasses.replace(table, quote=quote, delimiter=delimiter)
    else:
        table = dataclasses.replace(table, format="jsonl")
    return table, _reader(table)


def _reader(table: Table) -> RawReader:
    made = Transforms(table=table)
    columns = [field.name for field in table.output_schema if field.name != "bought"]
    return RawReader(made, columns, ["bought"], 16)


def table_file(data: bytes) -> None:
    """Reads raw records of a Parquet or an ORC file."""
    if data[:4] != b"PAR1" and data[:3] != b"ORC":
        return
    reader = _text_reader("", ",")[1]
    with in_memory(data) as path:
        for part in reader.read(path):
            part.features.validate(full=True)


def shard(data: bytes) -> None:
    """Reads a dataset's shard: its footer, its times and its profile."""
    with in_memory(data) as path:
        try:
            metadata = pq.read_metadata(path)
            groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        except UNREADABLE:
            groups = []
    rows = sum(groups)
    with in_folder(SHARD, data) as folder:
        file = DataFile(
            path=SHARD,
            rows=rows,
            bytes=len(data),
            xxh3_64="0" * 16,
            row_groups=tuple(groups),
        )
        split = Split(rows=rows, positives=0, files=(file,))
        dataclasses.replace(small_dataset(folder), splits={"train": split}).save()
        try:
            dataset = Dataset.open(folder)
            units = Ledger(dataset, LedgerOptions(batch_rows=2, unit_rows=2), epochs=1).units_of(0)
            clock = EventClock.of(dataset, units)
            clock.first_step_within(1, units_done=1)
            make_profile(dataset)
        finally:
            (folder / FILE_NAME).unlink()


def small_dataset(folder: Path) -> Dataset:
    """Gives a dataset with a column of each kind that `shard` reads, without shards."""
    return Dataset(
        directory=folder,
        numeric=(NumericFeature(name="I1"),),
        categorical=(
            CategoricalFeature(name="C1", cardinality=3),
            CategoricalFeature(name="tags", cardinality=3, ragged=True),
        ),
        schema={
            "label": "float",
            "I1": "float",
            "C1": "int64",
            "tags": "list<element: int64 not null>",
            "time": "int64",
        },
        timestamp="time",
        splits={},
    )


def small_shard() -> bytes:
    """Gives a shard of that dataset."""
    ids = pa.list_(pa.field("element", pa.int64(), nullable=False))
    columns = {
        "label": pa.array([0, 1, 1], pa.float32()),
        "I1": pa.array([0.5, 1, float("nan")], pa.float32()),
        "C1": pa.array([1, 2, 3], pa.int64()),
        "tags": pa.array([[1], [], [2, 3]], ids),
        "time": pa.array([5, 6, 7], pa.int64()),
    }
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, row_group_size=2, compression="none", store_schema=False)
    return out.getvalue()


def items(data: bytes) -> None:
    """Reads a file of items' vectors."""
    from embedps.evaluation.item_file import read_items

    with in_memory(data) as path:
        ids, vectors = read_items(path)
    if len(ids) != vectors.shape[0]:
        raise AssertionError("each item must have a vector")
