"""Parses one input file into sorted runs, bad lines and the statistics for the fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, TextIO

import numpy as np
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems
from numpy.typing import NDArray

from .bad_lines import BadLine
from .columnar_input import read_rows
from .file_record import FileRecord
from .ingest_job import IngestJob
from .input_files import PACKINGS, InputTask
from .joined_rows import RowJoiner
from .kept_texts import TextGatherer
from .line_blocks import BLOCK_BYTES, ReadAhead
from .missing_elements import MissingElements
from .path_columns import check_path_columns
from .record_hash import hash_lines, hash_records
from .record_input import COLUMNAR, open_records
from .row_divider import RowDivider
from .unpacked_stream import checksum_of
from .user_runs import UserRunRecord, UserRunWriter

_MIN_COMPRESSED_BYTES = 9  # of an empty zstd frame; others are longer


class FileParser:
    """Parses one file; writes its runs to the work directory and its bad lines to `bad_out`."""

    def __init__(self, job: IngestJob, task: InputTask, bad_out: TextIO) -> None:
        self._job, self._task, self._bad_out = job, task, bad_out
        self._texts = TextGatherer(job.table.as_read, job.keep_texts, job.work, task.index)
        self._table = self._texts.table
        self._in_file = self._table.of_input
        self._joiner = RowJoiner(self._table, job.work)
        self._by_user = UserRunWriter(job.work, task.index, self._table, job.by) if job.by else None
        self._divider = RowDivider(job, task.index) if self._by_user is None else None
        self._num_rows = 0
        self._bad = _LineCounter()
        self._damage = ""
        self._undeclared: tuple[str, ...] = ()
        self._absent: set[str] = set()
        self._without_key = np.zeros(2, np.int64)
        self._missing_elements = MissingElements(self._table)

    def run(self) -> FileRecord:
        """Parses the file.

        Raises:
          DatasetError: the file lacks a declared column, or a column has another type.
          OSError: the file exists but cannot be read.
        """
        try:
            stream = self._task.open()
        except Exception:
            # A listed file that is gone counts as damaged; one that cannot be read fails the job.
            if FileSystems.exists(self._task.path):
                raise
            self._damage = "the file vanished after it was listed"
            return self._record(0, checksum_of(_EmptyStream()))
        if self._in_file.format in COLUMNAR:
            return self._parse_columns(stream)
        return self._parse_blocks(stream, *open_records(stream, self._in_file, self._task.name))

    def _parse_blocks(
        self,
        stream: BinaryIO,
        reader: Any,
        parser: Any,
    ) -> FileRecord:
        split = self._job.split
        # Starting a thread takes longer than reading a small file.
        blocks = ReadAhead(reader) if self._task.bytes > BLOCK_BYTES else reader
        for block in blocks:
            rows, bad = parser.parse(block)
            records = hash_lines(parser.records(), split.seed) if split.needs_records else None
            bad = sorted((*bad, *block.bad), key=_line_number)
            self._add(rows, bad, block.bytes_read, records)
        # Not closed on an error: closing would wait for the thread that reads ahead.
        stream.close()
        self._undeclared, self._absent = parser.undeclared, parser.absent
        lines = reader.num_records - parser.num_header_lines
        return self._record(reader.num_bytes, reader.checksum, lines)

    def _parse_columns(self, stream: BinaryIO) -> FileRecord:
        split = self._job.split
        parts = read_rows(
            stream,
            self._in_file,
            self._task.name,
            with_records=split.needs_records,
            of_lake=self._task.of_lake,
        )
        for rows, bad, share, found in parts:
            records = None if found is None else hash_records(found, split.seed)
            self._add(rows, bad, round(share * self._task.bytes), records)
        stream.close()
        whole = self._task.open()
        checksum, num_bytes = checksum_of(whole), whole.tell()
        whole.close()
        return self._record(num_bytes, checksum, self._num_rows + self._bad.count)

    def _add(
        self,
        rows: pa.RecordBatch,
        bad: Sequence[BadLine],
        bytes_read: int,
        records: NDArray[np.uint64] | None,
    ) -> None:
        for line in bad:
            self._bad_out.write(line.to_json(self._task.name) + "\n")
            self._bad.add(line.line)
            if line.ends_file:
                self._damage = line.reason
        if rows.num_rows:
            check_path_columns(self._in_file, rows, self._task.folders)
        rows = self._joiner.join(rows)
        self._texts.add(rows)
        if rows.num_rows:
            split, table = self._job.split, self._table
            held_out = split.held_out(table, rows, self._task.held_out, records)
            self._num_rows += rows.num_rows
            self._missing_elements.add(rows)
            without = split.without_key(rows)
            self._without_key += (np.sum(without), np.sum(without & held_out))
            for each in (self._by_user, self._divider):
                if each is not None:
                    each.add(rows, held_out)
        progress = self._job.work.progress(f"{self._task.index:05d}")
        progress.write_text(f"{bytes_read} {self._num_rows}")

    def _record(self, num_bytes: int, checksum: str, lines: int = 0) -> FileRecord:
        user_runs: tuple[UserRunRecord, ...] = ()
        if self._by_user is not None:
            self._by_user.flush()
            user_runs = tuple(self._by_user.records)
        is_compressed = self._task.path.endswith(PACKINGS)
        if num_bytes < _MIN_COMPRESSED_BYTES and is_compressed and not self._damage:
            self._damage = f"the file must be packed as it is named, it has {num_bytes} bytes"
        if not lines:
            fault = BadLine(line=0, reason=self._damage or "the file has no rows", raw=b"")
            self._bad_out.write(fault.to_json(self._task.name) + "\n")
        return FileRecord(
            index=self._task.index,
            name=self._task.name,
            bytes=num_bytes,
            xxh3_64=checksum,
            lines=lines,
            lines_bad=self._bad.count,
            divided=None if self._divider is None else self._divider.finish(),
            user_runs=user_runs,
            damage=self._damage,
            undeclared=self._undeclared,
            absent=tuple(sorted(self._absent)),
            unmatched=tuple(self._joiner.unmatched),
            without_key=(int(self._without_key[0]), int(self._without_key[1])),
            missing_elements=self._missing_elements.counts,
            num_text_pieces=self._texts.finish(),
        )


class _LineCounter:
    """Counts distinct line numbers that arrive in order; the parts of a long line share one."""

    def __init__(self) -> None:
        self.count = 0
        self._last = 0

    def add(self, number: int) -> None:
        self.count += number != self._last
        self._last = number


class _EmptyStream:
    """A stream without bytes."""

    def read(self, size: int, /) -> bytes:
        return b""

    def close(self) -> None:
        pass


def _line_number(line: BadLine) -> int:
    return line.line
