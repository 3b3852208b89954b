"""A byte order mark is skipped; input that is not UTF-8 text is named, and what to do with it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
import zstandard

from embedps.errors import DatasetError
from embedps.pipelines.ingestion.line_blocks import LineBlockReader

TEXT = "clicked,user\n" + "1,ué\n0,v\n" * 100


def lines_of(data: bytes) -> list[bytes]:
    return [line for block in LineBlockReader(io.BytesIO(data)) for line in block.data.splitlines()]


def zipped() -> bytes:
    with io.BytesIO() as out:
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("a.csv", TEXT)
        return out.getvalue()


def columnar(module) -> bytes:
    with io.BytesIO() as out:
        module.write_table(pa.table({"clicked": [0, 1] * 100}), out)
        return out.getvalue()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_byte_order_mark_is_skipped(pack):
    assert lines_of(pack(TEXT.encode("utf-8-sig"))) == TEXT.encode().splitlines()
    assert lines_of(pack("\ufeff".encode())) == []


@pytest.mark.parametrize(
    ("data", "what", "advice"),
    [
        (TEXT.encode("utf-16"), "UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "UTF-16 text", "iconv"),
        (TEXT.encode("utf-16-le"), "UTF-16 without a mark", "iconv"),
        (TEXT.encode("utf-32"), "UTF-32 text", "iconv"),
        (gzip.compress(TEXT.encode("utf-16")), "UTF-16 text", "iconv"),
        (bz2.compress(TEXT.encode()), "packed by bzip2", "unpack it"),
        (lzma.compress(TEXT.encode()), "packed by xz", "unpack it"),
        (zipped(), "a zip archive", "unpack it"),
        (gzip.compress(gzip.compress(TEXT.encode())), "packed by gzip twice", "unpack it once"),
        (columnar(pq), "a Parquet file", 'format = "parquet"'),
        (columnar(orc), "an ORC file", 'format = "orc"'),
        (TEXT.replace("\n", "\r").encode(), "a carriage return alone (old Mac)", r"tr '\r' '\n'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "data",
)
def test_other_input_is_named_with_what_to_do(data: bytes, what: str, advice: str):
    with pytest.raises(DatasetError) as error:
        list(LineBlockReader(io.BytesIO(data), name="logs/a.csv"))
    message = str(error.value)
    assert message.startswith("logs/a.csv: ")
    assert what in message
    assert advice in message
    assert "\n" not in message


@pytest.mark.parametrize("start", ["ORC,1", "PAR1", "BZh,2", "PK", "Obj"])
def test_text_that_begins_as_a_format_does_is_text(start: str):
    assert lines_of(f"{start}\n1\n".encode()) == [start.encode(), b"1"]
