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
import xxhash
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


PACKINGS = [bytes, gzip.compress, bz2.compress, lzma.compress, zstandard.compress]


@pytest.mark.parametrize("pack", PACKINGS)
def test_byte_order_mark_is_skipped(pack):
    assert lines_of(pack(TEXT.encode("utf-8-sig"))) == TEXT.encode().splitlines()
    assert lines_of(pack("\ufeff".encode())) == []


@pytest.mark.parametrize(
    ("data", "what", "advice"),
    [
        (TEXT.encode("utf-16"), "UTF-16 text", 'declare encoding = "UTF-16"'),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "UTF-16 text", "encoding = "),
        (TEXT.encode("utf-16-le"), "UTF-16 without a mark", "encoding = "),
        (TEXT.encode("utf-32"), "UTF-32 text", "encoding = "),
        (gzip.compress(TEXT.encode("utf-16")), "UTF-16 text", "encoding = "),
        (gzip.compress(bz2.compress(TEXT.encode())), "packed by bzip2", "unpack it once"),
        (gzip.compress(lzma.compress(TEXT.encode())), "packed by xz", "unpack it once"),
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


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le", "shift_jis", "utf-8-sig"])
def test_text_of_a_declared_encoding_is_read(encoding: str):
    text = "é,ü\n" if encoding == "latin-1" else "テ,ス\n" if encoding == "shift_jis" else "é,テ\n"
    packed = gzip.compress((text * 300_000).encode(encoding))  # characters are cut by the reads
    reader = LineBlockReader(io.BytesIO(packed), encoding=encoding)
    lines = [line for block in reader for line in block.data.splitlines()]
    assert lines == [text.strip().encode()] * 300_000
    assert reader.checksum == xxhash.xxh3_64_hexdigest(packed)


@pytest.mark.parametrize("data", [b"a\n\x81\n", b"a\n\x8a"], ids=["no character", "half of one"])
def test_bytes_of_another_than_the_declared_encoding_are_named(data: bytes):
    with pytest.raises(DatasetError, match="logs/a: must be shift_jis, as the schema declares: "):
        list(LineBlockReader(io.BytesIO(data), encoding="shift_jis", name="logs/a"))
