"""Makes a dataset of input files, or keeps a finished one of the same input and options."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import apache_beam as beam

from embedps.data.dataset import FILE_NAME, Dataset
from embedps.errors import DatasetError, UsageError
from embedps.features.transforms import FILE_NAME as TRANSFORMS_NAME
from embedps.features.transforms import FOLDER_NAME as TRANSFORMS_FOLDER
from embedps.features.transforms import Transforms
from embedps.storage.id_texts import FOLDER_NAME as TEXTS_FOLDER

from .beam_runner import make_pipeline, run_pipeline, temporary_folder
from .beam_stages import build
from .ingest_job import BAD_LINES_NAME, IngestJob
from .input_files import InputTask, find_inputs, find_side_files, tables_of
from .job_progress import progress_shown
from .lake_tables import check_format
from .lock import locked
from .options import Options
from .side_tables import write_side_tables
from .unpacked_stream import checksum_of
from .work_dir import SPLITS


def make_dataset(options: Options) -> tuple[Dataset, bool]:
    """Makes the dataset, or keeps a finished one of the same input and options.

    Returns:
      the dataset, and whether this call made it.

    Raises:
      UsageError: an input is absent, or the output directory holds another dataset.
      DatasetError: the pipeline failed, or no line was good.
    """
    with temporary_folder():
        return _make_or_keep(options)


def _make_or_keep(options: Options) -> tuple[Dataset, bool]:
    pipeline = make_pipeline(options.beam_flags, verbose=options.verbose)
    inputs = find_inputs(options.input, options.held_out.eval_input)
    sides = [find_side_files(join.where, join.patterns) for join in options.table.joins]
    check_format("a schema", tables_of(inputs), options.table.format)
    for join, side in zip(options.table.joins, sides, strict=True):
        check_format(f"the {join.where}", tables_of(side), join.source.format)
    transforms = _given_transforms(options)
    job = replace(
        _job(options, inputs, transforms),
        tables=tuple(tables_of(task for tasks in (inputs, *sides) for task in tasks)),
    )
    options.output.mkdir(parents=True, exist_ok=True)
    with locked(options.output):
        if not options.force and _is_finished(options.output, job, inputs, sides):
            return Dataset.open(options.output), False
        _make(pipeline, job, inputs, sides, transforms)
    return Dataset.open(options.output), True


def _given_transforms(options: Options) -> Transforms | None:
    """Reads the transforms that are used instead of learned ones, for the job's table.

    Raises:
      UsageError: they are of another schema, or of the output.
      DatasetError: they cannot be read.
    """
    given = options.transforms_of
    if given is None:
        return None
    if given.absolute() == options.output.absolute():
        raise UsageError(f"--transforms-of must be another dataset than --output {given}")
    return Transforms.of(Dataset.open(given)).with_table(options.table, str(given))


def _make(
    pipeline: beam.Pipeline,
    job: IngestJob,
    inputs: Sequence[InputTask],
    sides: Sequence[Sequence[InputTask]],
    transforms: Transforms | None,
) -> None:
    output = Path(job.output)
    commit = output / FILE_NAME
    # The commit is removed first: without it the directory is no dataset until the new commit.
    commit.unlink(missing_ok=True)
    (output / BAD_LINES_NAME).unlink(missing_ok=True)
    _remove_unfinished(output, job)
    job.work.path.mkdir()
    if transforms is not None:
        transforms.save(job.work.path)
    try:
        job = replace(job, sides=write_side_tables(job, sides))
        with progress_shown(job, inputs):
            build(pipeline, job, inputs)
            run_pipeline(pipeline)
        if not commit.exists():
            raise DatasetError(job.work.failure.read_text())
        if job.work.notes.exists():
            print(job.work.notes.read_text(), file=sys.stderr)
    finally:
        if commit.exists():
            shutil.rmtree(job.work.path)
        else:
            _remove_unfinished(output, job)


def _job(options: Options, inputs: Sequence[InputTask], transforms: Transforms | None) -> IngestJob:
    negatives = options.negatives.rule(options.seed)
    return IngestJob(
        output=str(options.output.absolute()),
        table=options.table,
        num_shards=options.num_shards,
        row_group_rows=options.row_group_rows,
        max_bad_fraction=options.max_bad_fraction,
        allow_damaged_files=options.allow_damaged_files,
        split=options.split,
        negatives=None if negatives is None else negatives.with_joined(options.table),
        eval_files=tuple(task.name for task in inputs if task.held_out),
        transforms_digest="" if transforms is None else transforms.digest,
        keep_texts=tuple(dict.fromkeys(options.keep_texts)),
        max_texts=options.max_texts,
    )


def _is_finished(
    output: Path,
    job: IngestJob,
    inputs: Sequence[InputTask],
    sides: Sequence[Sequence[InputTask]],
) -> bool:
    """Tells whether the output is a finished dataset of this input and these options.

    Raises:
      UsageError: the output is a finished dataset of another input or other options.
    """
    if not (output / FILE_NAME).exists():
        return False
    hint = "give --force to replace it, or another --output"
    try:
        dataset = Dataset.open(output)
    except DatasetError as error:
        raise UsageError(f"--output holds a damaged dataset ({error}): {hint}") from None
    wanted = json.loads(json.dumps(job.to_json()))
    held = dict(dataset.input.options)
    differing = sorted(k for k in wanted | held if wanted.get(k) != held.get(k))
    if differing:
        made = {key: held.get(key) for key in differing if key != "table"} or "another schema"
        raise UsageError(
            f"--output {output} holds a dataset made with {made}, wanted another "
            f"{', '.join(differing)}: {hint}"
        )
    found = [*dataset.input.files, *(file for side in dataset.input.joins for file in side.files)]
    tasks = [*inputs, *(task for side in sides for task in side)]
    if [(f.path, f.bytes) for f in found] != [(task.name, task.bytes) for task in tasks]:
        raise UsageError(
            f"--output {output} holds a dataset of other input files or side tables: {hint}"
        )
    for task, file in zip(tasks, found, strict=True):
        with contextlib.closing(task.open()) as stream:
            same = checksum_of(stream) == file.xxh3_64
        if not same:
            raise UsageError(
                f"--output {output} was made when {task.path} held other bytes: {hint}"
            )
    return True


def _remove_unfinished(output: Path, job: IngestJob) -> None:
    """Removes shards that no `_dataset.json` names and the work directory, of any earlier run."""
    (output / TRANSFORMS_NAME).unlink(missing_ok=True)
    for path in (
        *(output / split for split in (*SPLITS, TRANSFORMS_FOLDER, TEXTS_FOLDER)),
        job.work.path,
    ):
        # Workers that are ending may still write; the next run removes what they leave.
        shutil.rmtree(path, ignore_errors=True)
