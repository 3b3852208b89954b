"""The Beam steps from logs to a dataset: parse files into sorted runs, fit, write shards, commit.

They live outside the command line's module, so that worker processes can import them by name.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from embedps.data.dataset import (
    CategoricalFeature,
    Dataset,
    InputFile,
    InputSummary,
    NumericFeature,
    Split,
)
from embedps.errors import DatasetError
from pipelines.ingestion.bad_lines import BadLine
from pipelines.ingestion.column_statistics import ColumnStatistics, fit
from pipelines.ingestion.line_blocks import (
    BLOCK_BYTES,
    ByteStream,
    LineBlockReader,
    ReadAhead,
    checksum_of,
)
from pipelines.ingestion.line_parser import LineParser
from pipelines.ingestion.parquet_input import read_rows
from pipelines.ingestion.shard_writer import ShardRecord, ShardTask, merged_sketches, write_shard
from pipelines.ingestion.sorted_runs import SortedRunWriter
from pipelines.ingestion.splits import SplitRule
from pipelines.ingestion.table_schema import Table
from pipelines.ingestion.transforms import FILE_NAME as TRANSFORMS_NAME
from pipelines.ingestion.transforms import Transforms
from pipelines.ingestion.work_dir import SPLITS, FileRecord, WorkDir, replacing

BAD_LINES_NAME = "_bad_lines.jsonl"
WORK_NAME = "_work"
_LEAST_PACKED_BYTES = 9  # of an empty zstd frame; gzip's is longer


@dataclass(frozen=True, kw_only=True)
class Job:
    """What decides the dataset's bytes, besides the input, and where it goes."""

    output: str
    table: Table
    num_shards: int
    row_group_rows: int
    max_bad_fraction: float
    allow_damaged_files: bool = False
    split: SplitRule = field(default_factory=SplitRule)
    eval_files: tuple[str, ...] = ()
    """Names of the files whose rows are held out, where that decides."""

    @property
    def work(self) -> WorkDir:
        return WorkDir(path=Path(self.output) / WORK_NAME)

    @property
    def shard_tasks(self) -> list[ShardTask]:
        """The shards to write; no held-out ones where nothing is held out."""
        splits = SPLITS if self.split.fraction != 0 else SPLITS[:1]
        return [
            ShardTask(split=split, index=i, count=self.num_shards)
            for split in splits
            for i in range(self.num_shards)
        ]

    def to_json(self) -> dict[str, Any]:
        """Returns the options that decide a dataset's bytes, as `_dataset.json` keeps them."""
        return {
            "num_shards": self.num_shards,
            "row_group_rows": self.row_group_rows,
            **self.split.to_json(),
            "eval_files": list(self.eval_files),
            "table": self.table.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class InputTask:
    """One file to read: its place in the order of files, path, and name in reports."""

    index: int
    path: str
    name: str
    bytes: int
    """Its size when it was listed."""
    held_out: bool = False


def open_input(path: str) -> ByteStream:
    """Opens a file of any file system that Beam knows, its bytes as they are."""
    stream: ByteStream = FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    return stream


class ParseFile(beam.DoFn):
    """Parses one file into sorted runs in the work directory; gives its FileRecord."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def process(self, task: InputTask) -> Iterator[FileRecord]:
        """Parses one file."""
        with replacing(self._job.work.bad_lines(task.index)) as path, open(path, "w") as bad_out:
            record = _FileParser(self._job, task, bad_out).run()
        yield record


class _FileParser:
    """One file on its way into runs."""

    def __init__(self, job: Job, task: InputTask, bad_out: Any) -> None:
        self._job, self._task, self._bad_out = job, task, bad_out
        self._runs = SortedRunWriter(job.work, task.index, job.table, job.split.seed)
        self._statistics = ColumnStatistics(job.table, job.work, task.index)
        self._bad = _DistinctLines()
        self._damage = ""

    def run(self) -> FileRecord:
        try:
            stream = open_input(self._task.path)
        except Exception:
            # A file of the list that is gone is set aside; one that cannot be read fails the job.
            if FileSystems.exists(self._task.path):
                raise
            self._damage = "the file vanished after it was listed"
            return self._record(0, checksum_of(_Empty()))
        is_parquet = self._job.table.format == "parquet"
        return self._parse_parquet(stream) if is_parquet else self._parse_lines(stream)

    def _parse_lines(self, stream: ByteStream) -> FileRecord:
        reader = LineBlockReader(stream)
        parser = LineParser(self._job.table, self._task.name)
        # A thread takes longer to start than a small file to read.
        blocks = ReadAhead(reader) if self._task.bytes > BLOCK_BYTES else reader
        for block in blocks:
            rows, bad = parser.parse(block)
            self._add(rows, sorted((*bad, *block.bad), key=_line_number), block.bytes_read)
        # Not closed on an error: closing would wait for the thread that reads ahead.
        stream.close()
        lines = reader.num_lines - parser.num_header_lines
        return self._record(reader.num_bytes, reader.checksum, lines)

    def _parse_parquet(self, stream: ByteStream) -> FileRecord:
        for rows, bad in read_rows(stream, self._job.table, self._task.name):
            self._add(rows, bad, 0)
        stream.close()
        whole = open_input(self._task.path)
        checksum, num_bytes = checksum_of(whole), whole.tell()  # type: ignore[attr-defined]
        whole.close()
        return self._record(num_bytes, checksum, self._runs.num_rows + self._bad.count)

    def _add(self, rows: pa.RecordBatch, bad: Sequence[BadLine], bytes_read: int) -> None:
        for line in bad:
            self._bad_out.write(line.to_json(self._task.name) + "\n")
            self._bad.add(line.line)
            if line.ends_file:
                self._damage = line.reason
        if rows.num_rows:
            held_out = self._job.split.held_out(self._job.table, rows, self._task.held_out)
            self._runs.add(rows, held_out)
            self._statistics.add(rows.filter(pa.array(~held_out)))
        progress = self._job.work.progress(f"{self._task.index:05d}")
        progress.write_text(f"{bytes_read} {self._runs.num_rows}")

    def _record(self, num_bytes: int, checksum: str, lines: int = 0) -> FileRecord:
        self._runs.flush()
        is_packed = self._task.path.endswith((".gz", ".zst"))
        if num_bytes < _LEAST_PACKED_BYTES and is_packed and not self._damage:
            self._damage = f"the file must be gzip or zstd, it has {num_bytes} bytes"
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
            runs=tuple(self._runs.records),
            damage=self._damage,
            moments=self._statistics.moments,
            num_count_pieces=self._statistics.finish(),
        )


class _Empty:
    """A stream without bytes."""

    def read(self, size: int, /) -> bytes:
        return b""

    def close(self) -> None:
        pass


def fit_transforms(_: None, job: Job, files: Sequence[FileRecord]) -> bool:
    """Puts the bad lines together, checks their share, and fits the transforms.

    Returns:
      whether the shards shall be written; if not, the work directory says why.
    """
    output, files = Path(job.output), _in_order(files)
    with replacing(output / BAD_LINES_NAME, sync=True) as path, open(path, "wb") as out:
        for file in files:
            with open(job.work.bad_lines(file.index), "rb") as part:
                shutil.copyfileobj(part, out)
    failure = _failure(job, files)
    if failure:
        job.work.failure.write_text(failure)
        return False
    Transforms(table=fit(job.table, job.work, files)).save(job.work.path)
    return True


def _failure(job: Job, files: Sequence[FileRecord]) -> str:
    lines, bad = sum(file.lines for file in files), sum(file.lines_bad for file in files)
    rows = sum(run.rows[0] for file in files for run in file.runs)
    damaged = [file for file in files if file.damage]
    if damaged and not job.allow_damaged_files:
        shown = "; ".join(
            f"{f.name} after {f.lines - f.lines_bad:,} good rows ({f.damage})" for f in damaged[:3]
        )
        return (
            f"{len(damaged):,} of {len(files):,} input files are cut, damaged or gone, and how "
            f"many rows are lost is not known: {shown}: give whole files, or --allow-damaged-files "
            "to use what can be read of them"
        )
    if bad > job.max_bad_fraction * lines:
        worst = sorted(files, key=lambda file: -file.lines_bad)[:3]
        shown = ", ".join(f"{f.name}: {f.lines_bad:,} of {f.lines:,}" for f in worst if f.lines_bad)
        return (
            f"at most {job.max_bad_fraction:.3%} of the lines may be bad (--max-bad-fraction), "
            f"but {bad:,} of {lines:,} are ({shown}): see {Path(job.output) / BAD_LINES_NAME}"
        )
    if not rows:
        return f"no line is a good row to train on: see {Path(job.output) / BAD_LINES_NAME}"
    return ""


class WriteShard(beam.DoFn):
    """Writes one shard; the parsed files are a side input."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def process(
        self, task: ShardTask, files: Sequence[FileRecord], go: bool
    ) -> Iterator[ShardRecord]:
        """Writes one shard, unless the job was given up."""
        if go:
            job = self._job
            runs = [run for file in _in_order(files) for run in file.runs]
            transforms = Transforms.load(job.work.path)
            yield write_shard(
                Path(job.output), job.work, runs, transforms, task, job.row_group_rows
            )


def commit(_: None, job: Job, files: Sequence[FileRecord], shards: Sequence[ShardRecord]) -> None:
    """Checks that every row is in a shard and commits the dataset, unless the job was given up."""
    if not shards:
        return
    output, files = Path(job.output), _in_order(files)
    transforms = Transforms.load(job.work.path)
    lines, bad = sum(file.lines for file in files), sum(file.lines_bad for file in files)
    written = sum(shard.file.rows for shard in shards)
    if lines != written + bad:
        raise DatasetError(
            f"rows read must be written or set aside, but {lines:,} were read, {written:,} "
            f"written and {bad:,} set aside: this is a fault of the pipeline, or the input changed"
        )
    sketches = merged_sketches(job.work, transforms, [shard.task for shard in shards])
    missing = {
        feature.name: sum(shard.missing[feature.name] for shard in shards)
        for feature in transforms.table.features
    }
    by_role = {column.role: column.name for column in transforms.table.columns}
    transforms.save(output)
    Dataset(
        directory=output,
        source=transforms.table.name,
        label=by_role["label"],
        weight=by_role.get("weight", ""),
        timestamp=by_role.get("timestamp", ""),
        transforms=TRANSFORMS_NAME,
        numeric=tuple(
            NumericFeature(
                name=feature.name,
                transform=", ".join(step.op for step in feature.steps) or "raw",
                missing=missing[feature.name],
            )
            for feature in transforms.table.features
            if feature.kind == "numeric"
        ),
        categorical=tuple(
            CategoricalFeature(
                name=feature.name,
                cardinality=sketches[feature.name].count,
                cardinality_exact=sketches[feature.name].exact,
                missing=missing[feature.name],
                ragged=feature.kind == "list",
            )
            for kind in ("categorical", "list")
            for feature in transforms.table.features
            if feature.kind == kind
        ),
        schema={field.name: str(field.type) for field in transforms.table.output_schema},
        splits={name: _split(name, shards) for name in SPLITS},
        input=InputSummary(
            files=tuple(
                InputFile(
                    path=file.name,
                    bytes=file.bytes,
                    xxh3_64=file.xxh3_64,
                    lines=file.lines,
                    lines_bad=file.lines_bad,
                )
                for file in files
            ),
            lines_read=lines,
            lines_bad=bad,
            options=job.to_json(),
        ),
        bad_lines=BAD_LINES_NAME,
    ).save()


def build(pipeline: beam.Pipeline, job: Job, inputs: Sequence[InputTask]) -> beam.PCollection:
    """Adds the steps to a pipeline; each stands on the one before through a side input."""
    once = pipeline | "Once" >> beam.Create([None])
    files = (
        pipeline
        | "Files" >> beam.Create(list(inputs))
        | "Spread files" >> beam.Reshuffle()
        | "Parse" >> beam.ParDo(ParseFile(job))
    )
    go = once | "Fit" >> beam.Map(fit_transforms, job, beam.pvalue.AsList(files))
    shards = (
        pipeline
        | "Shards" >> beam.Create(job.shard_tasks)
        | "Spread shards" >> beam.Reshuffle()
        | "Write"
        >> beam.ParDo(WriteShard(job), beam.pvalue.AsList(files), beam.pvalue.AsSingleton(go))
    )
    return once | "Commit" >> beam.Map(
        commit, job, beam.pvalue.AsList(files), beam.pvalue.AsList(shards)
    )


class _DistinctLines:
    """Counts line numbers that come in order; one that comes again, a part, counts once."""

    def __init__(self) -> None:
        self.count = 0
        self._last = 0

    def add(self, number: int) -> None:
        self.count += number != self._last
        self._last = number


def _split(name: str, shards: Sequence[ShardRecord]) -> Split:
    mine = sorted((s for s in shards if s.task.split == name), key=lambda s: s.task.index)
    return Split(
        rows=sum(shard.file.rows for shard in mine),
        positives=sum(shard.positives for shard in mine),
        files=tuple(shard.file for shard in mine),
    )


def _in_order(files: Sequence[FileRecord]) -> list[FileRecord]:
    return sorted(files, key=lambda file: file.index)


def _line_number(line: BadLine) -> int:
    return line.line
