"""Makes a dataset of input files, or keeps a finished one of the same input and options."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import apache_beam as beam

from embedps.data.dataset import FILE_NAME, Dataset
from embedps.errors import DatasetError, UsageError

from .beam_runner import make_pipeline, run_pipeline, temporary_folder
from .beam_stages import build
from .ingest_job import BAD_LINES_NAME, IngestJob
from .input_files import InputTask, find_inputs, open_input
from .job_progress import progress_shown
from .line_blocks import checksum_of
from .lock import locked
from .options import Options
from .transforms import FILE_NAME as TRANSFORMS_NAME
from .transforms import FOLDER_NAME as TRANSFORMS_FOLDER
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
    inputs = find_inputs(options.input, options.eval_input)
    job = _job(options, inputs)
    options.output.mkdir(parents=True, exist_ok=True)
    with locked(options.output):
        if not options.force and _is_finished(options.output, job, inputs):
            return Dataset.open(options.output), False
        _make(pipeline, job, inputs)
    return Dataset.open(options.output), True


def _make(pipeline: beam.Pipeline, job: IngestJob, inputs: Sequence[InputTask]) -> None:
    output = Path(job.output)
    commit = output / FILE_NAME
    # The commit is removed first: without it the directory is no dataset until the new commit.
    commit.unlink(missing_ok=True)
    (output / BAD_LINES_NAME).unlink(missing_ok=True)
    _remove_unfinished(output, job)
    job.work.path.mkdir()
    try:
        with progress_shown(job, inputs):
            build(pipeline, job, inputs)
            run_pipeline(pipeline)
        if not commit.exists():
            raise DatasetError(job.work.failure.read_text())
    finally:
        if commit.exists():
            shutil.rmtree(job.work.path)
        else:
            _remove_unfinished(output, job)


def _job(options: Options, inputs: Sequence[InputTask]) -> IngestJob:
    return IngestJob(
        output=str(options.output.absolute()),
        table=options.table,
        num_shards=options.num_shards,
        row_group_rows=options.row_group_rows,
        max_bad_fraction=options.max_bad_fraction,
        allow_damaged_files=options.allow_damaged_files,
        split=options.split,
        eval_files=tuple(task.name for task in inputs if task.held_out),
    )


def _is_finished(output: Path, job: IngestJob, inputs: Sequence[InputTask]) -> bool:
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
    files = [(file.path, file.bytes) for file in dataset.input.files]
    if files != [(task.name, task.bytes) for task in inputs]:
        raise UsageError(f"--output {output} holds a dataset of other input files: {hint}")
    for task, file in zip(inputs, dataset.input.files, strict=True):
        with contextlib.closing(open_input(task.path)) as stream:
            same = checksum_of(stream) == file.xxh3_64
        if not same:
            raise UsageError(
                f"--output {output} was made when {task.path} held other bytes: {hint}"
            )
    return True


def _remove_unfinished(output: Path, job: IngestJob) -> None:
    """Removes shards that no `_dataset.json` names and the work directory, of any earlier run."""
    (output / TRANSFORMS_NAME).unlink(missing_ok=True)
    for path in (*(output / split for split in (*SPLITS, TRANSFORMS_FOLDER)), job.work.path):
        # Workers that are ending may still write; the next run removes what they leave.
        shutil.rmtree(path, ignore_errors=True)
