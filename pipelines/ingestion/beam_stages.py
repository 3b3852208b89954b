"""The stages of the Beam pipeline: parse the files, fit the transforms, write shards and texts.

The stages are in a module of their own, so that worker processes can import them by name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import apache_beam as beam

from embedps.data.dataset_metadata import SideTable
from embedps.errors import DatasetError
from embedps.features.transforms import Transforms
from embedps.storage.file_io import replacing

from .column_statistics import fit_features
from .dataset_commit import commit_dataset
from .file_parser import FileParser
from .file_record import DividedRows, FileRecord, all_runs, in_order
from .ingest_job import BAD_LINES_NAME, IngestJob
from .input_files import InputTask
from .kept_texts import MergedPart, describe_texts, merge_part, write_part
from .later_rows import divide_range, draw_negatives
from .negatives import join_pools
from .shard_writer import ShardRecord, ShardTask, write_shard
from .user_runs import UserRange, UserRunRecord, find_ranges

_SHOWN_NAMES = 10


def build(pipeline: beam.Pipeline, job: IngestJob, inputs: Sequence[InputTask]) -> beam.PCollection:
    """Adds the stages to a pipeline; side inputs make each stage wait for the one before."""
    once = pipeline | "Once" >> beam.Create([None])
    files = (
        pipeline
        | "Files" >> beam.Create(list(inputs))
        | "Spread files" >> beam.Reshuffle()
        | "Parse" >> beam.ParDo(ParseFile(job))
    )
    divided = beam.pvalue.AsList(_divided(once, job, files))
    if job.negatives is not None:
        pooled = once | "Pool" >> beam.Map(pool, job, divided)
        drawn = (
            pooled
            | "Parts of rows" >> beam.FlatMap(lambda parts: parts)
            | "Spread parts of rows" >> beam.Reshuffle()
            | "Draw" >> beam.FlatMap(with_negatives, job, beam.pvalue.AsSingleton(pooled))
        )
        divided = beam.pvalue.AsList(drawn)
    go = once | "Fit" >> beam.Map(fit_transforms, job, beam.pvalue.AsList(files), divided)
    shards = (
        pipeline
        | "Shards" >> beam.Create(job.shard_tasks)
        | "Spread shards" >> beam.Reshuffle()
        | "Write" >> beam.ParDo(WriteShard(job), divided, beam.pvalue.AsSingleton(go))
    )
    texts: tuple[beam.pvalue.AsList, ...] = ()
    if job.keep_texts:
        merged = (
            pipeline
            | "Parts" >> beam.Create(list(range(job.num_shards)))
            | "Spread parts" >> beam.Reshuffle()
            | "Merge texts"
            >> beam.ParDo(MergeTexts(job), beam.pvalue.AsList(files), beam.pvalue.AsSingleton(go))
        )
        written = (
            merged
            | "Merged" >> beam.Map(lambda part: part.index)
            | "Spread merged" >> beam.Reshuffle()
            | "Write texts" >> beam.Map(write_texts, job, beam.pvalue.AsList(merged))
        )
        texts = (beam.pvalue.AsList(merged), beam.pvalue.AsList(written))
    return once | "Commit" >> beam.Map(
        commit, job, beam.pvalue.AsList(files), divided, beam.pvalue.AsList(shards), *texts
    )


def _divided(once: beam.PCollection, job: IngestJob, files: beam.PCollection) -> beam.PCollection:
    """Adds the stages that divide rows into the splits, if parsing has not done so."""
    if not job.by:
        return files | "Divided" >> beam.Map(lambda file: file.divided)
    return (
        once
        | "Ranges" >> beam.FlatMap(user_ranges, job, beam.pvalue.AsList(files))
        | "Spread ranges" >> beam.Reshuffle()
        | "Divide" >> beam.Map(divide_users, job, beam.pvalue.AsList(files))
    )


def user_ranges(_: None, job: IngestJob, files: Sequence[FileRecord]) -> list[UserRange]:
    """Divides all users' rows into ranges."""
    lengths = [c.history.length for c in job.table.columns if c.history is not None]
    return find_ranges(job.work, _user_runs(files), sum(lengths))


def divide_users(of: UserRange, job: IngestJob, files: Sequence[FileRecord]) -> DividedRows:
    """Divides the rows of a range of users into the splits."""
    return divide_range(job, _user_runs(files), of)


def pool(_: None, job: IngestJob, divided: Sequence[DividedRows]) -> list[DividedRows]:
    """Joins the rows of which negatives are drawn; returns all parts.

    Raises:
      DatasetError: there are no two items to draw.
    """
    divided = sorted(divided, key=lambda part: part.index)
    if not join_pools(job.work, [part.index for part in divided]):
        raise DatasetError(
            "negatives need positive rows of two items or more to train on: leave out --negatives"
        )
    return divided


def with_negatives(
    part: DividedRows, job: IngestJob, parts: Sequence[DividedRows]
) -> list[DividedRows]:
    """Draws the negatives of a part; returns both."""
    return [part, draw_negatives(job, part, 1 + max(each.index for each in parts))]


def _user_runs(files: Sequence[FileRecord]) -> list[UserRunRecord]:
    return [run for file in in_order(files) for run in file.user_runs]


class ParseFile(beam.DoFn):
    """Parses one file into sorted runs in the work directory; emits its FileRecord."""

    def __init__(self, job: IngestJob) -> None:
        self._job = job

    def process(self, task: InputTask) -> Iterator[FileRecord]:
        """Parses one file."""
        with replacing(self._job.work.bad_lines(task.index)) as path, open(path, "w") as bad_out:
            record = FileParser(self._job, task, bad_out).run()
        yield record


def fit_transforms(
    _: None, job: IngestJob, files: Sequence[FileRecord], divided: Sequence[DividedRows]
) -> bool:
    """Joins the bad lines, checks how many there are, and fits the transforms.

    Returns:
      whether to write the shards; if not, the work directory's failure file says why.
    """
    output, files = Path(job.output), in_order(files)
    with replacing(output / BAD_LINES_NAME, sync=True) as path, open(path, "wb") as out:
        for file in files:
            with open(job.work.bad_lines(file.index), "rb") as part:
                shutil.copyfileobj(part, out)
    divided = sorted(divided, key=lambda part: part.index)
    failure = _failure(job, files, divided)
    if failure:
        job.work.failure.write_text(failure)
        return False
    if notes := _notes(job, files, divided):
        job.work.notes.write_text(notes)
    if not job.transforms_digest:
        Transforms(table=fit_features(job.table, job.work, divided)).save(job.work.path)
    return True


def _notes(job: IngestJob, files: Sequence[FileRecord], divided: Sequence[DividedRows]) -> str:
    """Returns what the user should know; empty if there is nothing."""
    notes = []
    names = list(dict.fromkeys(name for file in files for name in file.undeclared))
    if names:
        shown = ", ".join(map(repr, names[:_SHOWN_NAMES])) + (", …" if names[_SHOWN_NAMES:] else "")
        notes.append(
            f"the input has columns that the schema does not declare; they are not read: {shown}"
        )
    for side, unmatched in _unmatched(job, files):
        if unmatched:
            lines = sum(file.lines - file.lines_bad for file in files)
            notes.append(
                f"{unmatched:,} of {lines:,} rows have no row in {side.name} by {side.on}: what "
                "they would get of it is missing"
            )
    if users := sum(part.users_left for part in divided):
        notes.append(
            f"--eval-last {job.split.last} holds out no row of {users:,} users, who have no more "
            "rows than that: theirs are to train on"
        )
    if rows := sum(part.rows_left for part in divided):
        notes.append(f"{rows:,} rows have no {job.split.by}: they are to train on")
    if rows := sum(file.without_key[0] for file in files):
        held = "held out" if any(file.without_key[1] for file in files) else "to train on"
        notes.append(
            f"{rows:,} rows have no {', '.join(job.split.keys)}, and go by --split-key together: "
            f"all are {held}"
        )
    for name in dict.fromkeys(name for file in files for name in file.missing_elements):
        found = sum(file.missing_elements.get(name, 0) for file in files)
        texts = ", ".join(map(repr, job.table.missing[:_SHOWN_NAMES]))
        notes.append(
            f"{found:,} elements of the lists {name} are texts that mean a missing value elsewhere "
            f"({texts}): within a list they are ids like others; leave them out if they mean none"
        )
    return "\n".join(notes)


def _unmatched(job: IngestJob, files: Sequence[FileRecord]) -> Iterator[tuple[SideTable, int]]:
    for place, side in enumerate(job.sides):
        yield side, sum(file.unmatched[place] for file in files if file.unmatched)


def _failure(job: IngestJob, files: Sequence[FileRecord], divided: Sequence[DividedRows]) -> str:
    """Returns why the job must stop after parsing; empty if it may go on."""
    lines, bad = sum(file.lines for file in files), sum(file.lines_bad for file in files)
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
    with_lines = [file.absent for file in files if file.lines > file.lines_bad]
    if with_lines and (absent := set(with_lines[0]).intersection(*with_lines[1:])):
        keys = (".".join(job.table.column(name).keys) for name in sorted(absent))
        return (
            f"no line of the input has {', '.join(keys)}: spell the columns as the input does, or "
            "leave them out of the schema"
        )
    if bad > job.max_bad_fraction * lines:
        worst = sorted(files, key=lambda file: -file.lines_bad)[:3]
        shown = ", ".join(f"{f.name}: {f.lines_bad:,} of {f.lines:,}" for f in worst if f.lines_bad)
        path = Path(job.output) / BAD_LINES_NAME
        with open(path, encoding="utf-8") as file:
            found = map(json.loads, file)
            first = next(each for each in found if each["line"])  # 0: a file without rows
        return (
            f"at most {job.max_bad_fraction:.3%} of the lines may be bad (--max-bad-fraction), "
            f"but {bad:,} of {lines:,} are ({shown}), such as line {first['line']} of "
            f"{first['file']} ({first['reason']}): see {path}"
        )
    for join, (side, unmatched) in zip(job.table.joins, _unmatched(job, files), strict=True):
        if unmatched and (join.required or unmatched == lines - bad):
            which = "each row" if join.required else "some row"
            return (
                f"{which} of the input must have a row in {side.name} by {side.on}, but "
                f"{unmatched:,} of {lines - bad:,} have none: give a side table with their keys, "
                "written and declared as the input's"
                + (", or leave out required" if join.required else "")
            )
    runs = all_runs(divided)
    if not any(run.rows[0] for run in runs):
        return f"no line is a good row to train on: see {Path(job.output) / BAD_LINES_NAME}"
    if job.split.must_hold_rows and not any(run.rows[1] for run in runs):
        return (
            "the input must have rows to hold out by --eval-from, --eval-where or --eval-last, it "
            "has none: give a time, a value or fewer rows than it has, or --eval-fraction 0 to "
            "hold out nothing"
        )
    return ""


class WriteShard(beam.DoFn):
    """Writes one shard; the divided rows are a side input."""

    def __init__(self, job: IngestJob) -> None:
        self._job = job

    def process(
        self, task: ShardTask, divided: Sequence[DividedRows], go: bool
    ) -> Iterator[ShardRecord]:
        """Writes one shard, unless the job has stopped."""
        if go:
            job = self._job
            transforms = Transforms.load(job.work.path)
            yield write_shard(
                Path(job.output),
                job.work,
                all_runs(divided),
                transforms,
                task,
                job.row_group_rows,
            )


class MergeTexts(beam.DoFn):
    """Merges a part of the texts of ids; the parsed files are a side input."""

    def __init__(self, job: IngestJob) -> None:
        self._job = job

    def process(self, index: int, files: Sequence[FileRecord], go: bool) -> Iterator[MergedPart]:
        """Merges one part, unless the job has stopped."""
        if go:
            yield merge_part(
                self._job, in_order(files), Transforms.load(self._job.work.path), index
            )


def write_texts(index: int, job: IngestJob, parts: Sequence[MergedPart]) -> int:
    """Writes a part of the texts of ids; returns how many."""
    return write_part(job, parts, index)


def commit(
    _: None,
    job: IngestJob,
    files: Sequence[FileRecord],
    divided: Sequence[DividedRows],
    shards: Sequence[ShardRecord],
    parts: Sequence[MergedPart] = (),
    written: Sequence[int] = (),
) -> None:
    """Commits the dataset, unless the job has stopped."""
    if shards:
        drawn = sum(sum(run.rows) for part in divided if part.drawn for run in part.runs)
        commit_dataset(job, in_order(files), drawn, shards, describe_texts(job, parts, written))
