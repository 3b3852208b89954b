"""Opens a file of records: the reader of its blocks, and the parser of its format."""

from __future__ import annotations

from typing import Any, BinaryIO

from embedps.features.table_schema import Table

from .avro_blocks import AvroReader
from .avro_records import AvroParser
from .record_blocks import RecordReader
from .text_input import open_lines
from .tf_examples import ExampleParser

COLUMNAR = ("parquet", "orc")


def open_records(stream: BinaryIO, table: Table, name: str) -> tuple[Any, Any]:
    """Opens a stream of `table.format`, which is not columnar, as `open_lines` does."""
    if table.format == "tfrecord":
        return RecordReader(stream), ExampleParser(table, name)
    if table.format == "avro":
        return AvroReader(stream, name), AvroParser(table, name)
    return open_lines(stream, table, name)
