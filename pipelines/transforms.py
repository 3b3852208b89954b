"""The Beam steps from click logs to a dataset: parse files, cut shards, commit.

They live outside the command line's module, so that worker processes can import them by name.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from embedps.dataset import (
    MISSING_ID,
    CategoricalFeature,
    Dataset,
    InputFile,
    InputSummary,
    NumericFeature,
    Split,
)
from pipelines.bad_lines import BadLine
from pipelines.criteo_format import IDS, INTEGERS
from pipelines.distinct import DistinctSketch
from pipelines.line_blocks import ByteStream, LineBlockReader, ReadAhead
from pipelines.parse import MISSING_INTEGER, SCHEMA, ParsedRows, parse_block
from pipelines.row_hash import is_eval
from pipelines.shards import ShardRecord, ShardTask, write_block, write_shard
from pipelines.work_dir import SPLITS, BlockRecord, FileRecord, WorkDir, replacing

BAD_LINES_NAME = "_bad_lines.jsonl"
WORK_NAME = "_work"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What decides the dataset's bytes, besides the input, and where it goes."""

    output: str
    num_shards: int
    eval_fraction: float
    seed: int

    @property
    def work(self) -> WorkDir:
        return WorkDir(path=Path(self.output) / WORK_NAME)

    @property
    def shard_tasks(self) -> list[ShardTask]:
        """The shards to write; no held-out ones where nothing is held out."""
        splits = SPLITS if self.eval_fraction > 0 else SPLITS[:1]
        return [
            ShardTask(split=split, index=i, count=self.num_shards)
            for split in splits
            for i in range(self.num_shards)
        ]


@dataclass(frozen=True, kw_only=True)
class InputTask:
    """One file to read: its place in the order of files, path, and name in reports."""

    index: int
    path: str
    name: str


def open_input(path: str) -> ByteStream:
    """Opens a file of any file system that Beam knows, its bytes as they are."""
    stream: ByteStream = FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    return stream


class ParseFile(beam.DoFn):
    """Parses one file into block files of the work directory; gives its FileRecord."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def process(self, task: InputTask) -> Iterator[FileRecord]:
        """Parses one file."""
        job, work = self._job, self._job.work
        tally = _Tally()
        blocks: list[BlockRecord] = []
        bad_numbers = _DistinctLines()
        stream = open_input(task.path)
        reader = LineBlockReader(stream)
        with replacing(work.bad_lines(task.index)) as bad_path, open(bad_path, "w") as bad_out:
            for block in ReadAhead(reader):
                rows, bad = parse_block(block)
                for line in sorted((*bad, *block.bad), key=_line_number):
                    bad_out.write(line.to_json(task.name) + "\n")
                    bad_numbers.add(line.line)
                if rows.num_rows:
                    held_out = is_eval(rows, job.seed, job.eval_fraction)
                    path = work.block(task.index, len(blocks))
                    write_block(path, rows.to_batch(), held_out)
                    blocks.append(_record(path, rows, held_out))
                    tally.add(rows)
                work.progress(task.index).write_text(str(block.bytes_read))
        # Not closed on an error: closing would wait for the thread that reads ahead.
        stream.close()
        tally.save(work.sketches(task.index))
        yield FileRecord(
            index=task.index,
            name=task.name,
            bytes=reader.num_bytes,
            xxh3_64=reader.checksum,
            lines=reader.num_lines,
            lines_bad=bad_numbers.count,
            blocks=tuple(blocks),
            integers_missing=tuple(tally.integers_missing.tolist()),
            ids_missing=tuple(tally.ids_missing.tolist()),
        )


class WriteShard(beam.DoFn):
    """Writes one shard; the parsed files are a side input."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def process(self, task: ShardTask, files: Sequence[FileRecord]) -> Iterator[ShardRecord]:
        """Writes one shard."""
        blocks = [block for file in _in_order(files) for block in file.blocks]
        yield write_shard(Path(self._job.output), self._job.work, blocks, task)


def commit(
    _: None, job: Job, files: Sequence[FileRecord], shards: Sequence[ShardRecord]
) -> Dataset:
    """Puts the bad lines together and, if there are rows to train on, commits the dataset."""
    output = Path(job.output)
    files = _in_order(files)
    with replacing(output / BAD_LINES_NAME, sync=True) as path, open(path, "wb") as out:
        for file in files:
            with open(job.work.bad_lines(file.index), "rb") as part:
                shutil.copyfileobj(part, out)
    sketches = _merged_sketches(job.work, files)
    splits = {name: _split(name, shards) for name in SPLITS}
    dataset = Dataset(
        directory=output,
        numeric=tuple(
            NumericFeature(name=name, missing=sum(file.integers_missing[i] for file in files))
            for i, name in enumerate(INTEGERS)
        ),
        categorical=tuple(
            CategoricalFeature(
                name=name,
                cardinality=sketch.count,
                cardinality_exact=sketch.exact,
                missing=sum(file.ids_missing[i] for file in files),
            )
            for i, (name, sketch) in enumerate(zip(IDS, sketches, strict=True))
        ),
        schema={field.name: str(field.type) for field in SCHEMA},
        splits=splits,
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
            lines_read=sum(file.lines for file in files),
            lines_bad=sum(file.lines_bad for file in files),
            options=job_options(job),
        ),
        bad_lines=BAD_LINES_NAME,
    )
    if splits["train"].rows:
        dataset.save()
    return dataset


def job_options(job: Job) -> dict[str, int | float]:
    """Returns the options that decide a dataset's bytes, as `_dataset.json` keeps them."""
    return {"num_shards": job.num_shards, "eval_fraction": job.eval_fraction, "seed": job.seed}


def build(pipeline: beam.Pipeline, job: Job, inputs: Sequence[InputTask]) -> beam.PCollection:
    """Adds the steps to a pipeline; each stands on the one before through a side input."""
    files = (
        pipeline
        | "Files" >> beam.Create(list(inputs))
        | "Spread files" >> beam.Reshuffle()
        | "Parse" >> beam.ParDo(ParseFile(job))
    )
    shards = (
        pipeline
        | "Shards" >> beam.Create(job.shard_tasks)
        | "Spread shards" >> beam.Reshuffle()
        | "Write" >> beam.ParDo(WriteShard(job), beam.pvalue.AsList(files))
    )
    return (
        pipeline
        | "Once" >> beam.Create([None])
        | "Commit" >> beam.Map(commit, job, beam.pvalue.AsList(files), beam.pvalue.AsList(shards))
    )


class _DistinctLines:
    """Counts line numbers that come in order; one that comes again, a part, counts once."""

    def __init__(self) -> None:
        self.count = 0
        self._last = 0

    def add(self, number: int) -> None:
        self.count += number != self._last
        self._last = number


class _Tally:
    """Missing values and distinct ids of one file's rows."""

    def __init__(self) -> None:
        self.integers_missing = np.zeros(len(INTEGERS), np.int64)
        self.ids_missing = np.zeros(len(IDS), np.int64)
        self._sketches = [DistinctSketch() for _ in IDS]

    def add(self, rows: ParsedRows) -> None:
        self.integers_missing += (rows.integers == MISSING_INTEGER).sum(axis=1)
        missing = rows.ids == MISSING_ID
        self.ids_missing += missing.sum(axis=1)
        for sketch, ids, absent in zip(self._sketches, rows.ids, missing, strict=True):
            sketch.add(ids[~absent])

    def save(self, path: Path) -> None:
        arrays = {name: s.hashes for name, s in zip(IDS, self._sketches, strict=True)}
        with replacing(path) as temporary, open(temporary, "wb") as out:
            np.savez(out, allow_pickle=False, **arrays)


def _record(path: Path, rows: ParsedRows, held_out: np.ndarray) -> BlockRecord:
    num_eval = int(held_out.sum())
    positives, positives_eval = int(rows.labels.sum()), int(rows.labels[held_out].sum())
    return BlockRecord(
        file_name=path.name,
        rows=(rows.num_rows - num_eval, num_eval),
        positives=(positives - positives_eval, positives_eval),
    )


def _merged_sketches(work: WorkDir, files: Sequence[FileRecord]) -> list[DistinctSketch]:
    sketches = [DistinctSketch() for _ in IDS]
    for file in files:
        with np.load(work.sketches(file.index)) as arrays:
            for name, sketch in zip(IDS, sketches, strict=True):
                sketch.add_hashes(arrays[name])
    return sketches


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
