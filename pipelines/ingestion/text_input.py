"""Opens a file of lines: the reader of its blocks, and the parser of its format."""

from __future__ import annotations

from embedps.features.table_schema import Table

from .json_lines import JsonLineParser
from .line_blocks import LineBlockReader
from .line_parser import LineParser
from .unpacked_stream import ByteStream


def open_lines(
    stream: ByteStream, table: Table, name: str
) -> tuple[LineBlockReader, LineParser | JsonLineParser]:
    """Opens a stream of `table.format`; `name` is the file's path from a column's folder on."""
    if table.format == "jsonl":
        reader = LineBlockReader(stream, encoding=table.encoding, name=name)
        return reader, JsonLineParser(table, name)
    reader = LineBlockReader(
        stream,
        delimiter=table.delimiter,
        quote=table.quote,
        encoding=table.encoding,
        name=name,
    )
    return reader, LineParser(table, name)
