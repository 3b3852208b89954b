"""One run from click logs to a dataset: what it was asked, what is there already, the pipeline."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import apache_beam as beam
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from embedps.dataset import FILE_NAME, Dataset
from embedps.errors import DatasetError, UsageError
from pipelines.cli import reporter
from pipelines.criteo_options import Options
from pipelines.line_blocks import checksum_of
from pipelines.transforms import (
    BAD_LINES_NAME,
    InputTask,
    Job,
    build,
    job_options,
    open_input,
)
from pipelines.work_dir import SPLITS

DEFAULT_RUNNER = "FnApiRunner"
"""DirectRunner would look for a binary to download, and be another engine where it finds it."""
_POLL_SECS = 0.5


def make_dataset(options: Options) -> tuple[Dataset, bool]:
    """Makes the dataset, or keeps a finished one of the same input and options.

    Returns:
      the dataset, and whether it was made now.

    Raises:
      UsageError: an input is absent, or the output holds another dataset.
      DatasetError: the pipeline failed, or no line was good.
    """
    pipeline = _pipeline(options.beam_flags)
    inputs, sizes = find_inputs(options.input)
    if not options.force and _holds(options, inputs, sizes):
        return Dataset.open(options.output), False
    job = _job(options)
    options.output.mkdir(parents=True, exist_ok=True)
    commit = options.output / FILE_NAME
    # The commit goes first: from here on the directory is no dataset until it is written again.
    commit.unlink(missing_ok=True)
    (options.output / BAD_LINES_NAME).unlink(missing_ok=True)
    _remove_unfinished(options.output, job)
    job.work.path.mkdir()
    try:
        with _progress(job, inputs, sum(sizes)):
            _run_pipeline(pipeline, job, inputs)
    finally:
        if commit.exists():
            shutil.rmtree(job.work.path)
        else:
            _remove_unfinished(options.output, job)
    if not commit.exists():
        raise DatasetError(
            f"{', '.join(options.input)}: no line is a good row to train on, "
            f"see {options.output / BAD_LINES_NAME}"
        )
    return Dataset.open(options.output), True


def _job(options: Options) -> Job:
    return Job(
        output=str(options.output.absolute()),
        num_shards=options.num_shards,
        eval_fraction=options.eval_fraction,
        seed=options.seed,
    )


def find_inputs(patterns: Sequence[str]) -> tuple[list[InputTask], list[int]]:
    """Returns the files that the patterns match, sorted by path, and their sizes in bytes."""
    sizes: dict[str, int] = {}
    for pattern in patterns:
        try:
            (match,) = FileSystems.match([pattern])
        except (BeamIOError, ValueError, OSError) as error:
            raise UsageError(f"--input {pattern}: cannot be listed: {error}") from None
        if not match.metadata_list:
            raise UsageError(f"--input {pattern}: must match a file, there is none")
        sizes.update({file.path: file.size_in_bytes for file in match.metadata_list})
    paths = sorted(sizes)
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    inputs = [
        InputTask(index=i, path=path, name=path[len(folder) :].lstrip("/"))
        for i, path in enumerate(paths)
    ]
    return inputs, [sizes[path] for path in paths]


def _holds(options: Options, inputs: Sequence[InputTask], sizes: Sequence[int]) -> bool:
    """Tells whether the output is a finished dataset of this input and these options.

    Raises:
      UsageError: it is a finished dataset of others.
    """
    if not (options.output / FILE_NAME).exists():
        return False
    hint = "give --force to replace it, or another --output"
    try:
        dataset = Dataset.open(options.output)
    except DatasetError as error:
        raise UsageError(f"--output holds a damaged dataset ({error}): {hint}") from None
    if dataset.input.options != job_options(_job(options)):
        raise UsageError(
            f"--output {options.output} holds a dataset made with {dataset.input.options}, "
            f"wanted {job_options(_job(options))}: {hint}"
        )
    found = [(file.path, file.bytes) for file in dataset.input.files]
    wanted = list(zip([task.name for task in inputs], sizes, strict=True))
    if found != wanted:
        raise UsageError(f"--output {options.output} holds a dataset of other input files: {hint}")
    for task, file in zip(inputs, dataset.input.files, strict=True):
        with contextlib.closing(open_input(task.path)) as stream:
            same = checksum_of(stream) == file.xxh3_64
        if not same:
            raise UsageError(
                f"--output {options.output} was made when {task.path} held other bytes: {hint}"
            )
    return True


def _remove_unfinished(output: Path, job: Job) -> None:
    """Removes shards that no `_dataset.json` names, and the scratch, of this or a killed run."""
    for path in (*(output / split for split in SPLITS), job.work.path):
        # Workers that are being ended may still write: what they leave goes before the next run.
        shutil.rmtree(path, ignore_errors=True)


def _run_pipeline(pipeline: beam.Pipeline, job: Job, inputs: Sequence[InputTask]) -> None:
    build(pipeline, job, inputs)
    try:
        pipeline.run().wait_until_finish()
    except Exception as error:
        logging.getLogger(__name__).debug("the pipeline failed", exc_info=True)
        lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
        raise DatasetError(
            f"the pipeline failed: {lines[-1].strip()} (--verbose shows where)"
        ) from error


class _BeamFlagParser(beam.options.pipeline_options._BeamArgumentParser):
    """Beam's parser, with UsageError in place of an exit."""

    def error(self, message: str) -> None:
        raise UsageError(f"{message} (see --help)")


def _pipeline(flags: Sequence[str]) -> beam.Pipeline:
    """Makes an empty pipeline of Beam's flags; raises UsageError for a flag or runner unknown."""
    parser = _BeamFlagParser(allow_abbrev=False, add_help=False)
    for options_class in PipelineOptions.__subclasses__():
        options_class._add_argparse_args(parser)
    with contextlib.redirect_stderr(io.StringIO()):
        _, unknown = parser.parse_known_args(list(flags))
    if unknown:
        raise UsageError(
            f"must be a flag of this command or of Beam: {' '.join(unknown)} (see --help)"
        )
    options = PipelineOptions(list(flags))
    standard = options.view_as(StandardOptions)
    if standard.runner is None:
        standard.runner = DEFAULT_RUNNER
    try:
        return beam.Pipeline(options=options)
    except (ValueError, ImportError, AttributeError) as error:
        raise UsageError(f"--runner {standard.runner}: {error}") from None


@contextlib.contextmanager
def _progress(job: Job, inputs: Sequence[InputTask], total_bytes: int) -> Iterator[None]:
    """Shows progress while the pipeline runs, from what it leaves in its directories."""
    finished = threading.Event()
    paths = [job.work.progress(task.index) for task in inputs]

    def watch() -> None:
        with reporter("parsing logs", max(total_bytes >> 20, 1), "MiB") as parsing:
            while not finished.wait(_POLL_SECS):
                texts = []
                for path in paths:
                    with contextlib.suppress(OSError):
                        texts.append(path.read_text())
                parsing.update(sum(int(text) for text in texts if text) >> 20)

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
