"""One run from logs to a dataset: what it was asked, what is there already, the pipeline."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import apache_beam as beam
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import create_runner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from embedps.data.dataset import FILE_NAME, Dataset
from embedps.errors import DatasetError, UsageError
from pipelines.cli import reporter
from pipelines.ingestion.beam_stages import (
    BAD_LINES_NAME,
    InputTask,
    Job,
    build,
    open_input,
)
from pipelines.ingestion.line_blocks import checksum_of
from pipelines.ingestion.lock import locked
from pipelines.ingestion.options import Options
from pipelines.ingestion.transforms import FILE_NAME as TRANSFORMS_NAME
from pipelines.ingestion.transforms import FOLDER_NAME as TRANSFORMS_FOLDER
from pipelines.ingestion.work_dir import SPLITS

DEFAULT_RUNNER = "FnApiRunner"
"""DirectRunner would look for a binary to download, and be another engine where it finds it."""
_POLL_SECS = 0.5
_POLL_TIMES = 50  # of the time that a look takes


def make_dataset(options: Options) -> tuple[Dataset, bool]:
    """Makes the dataset, or keeps a finished one of the same input and options.

    Returns:
      the dataset, and whether it was made now.

    Raises:
      UsageError: an input is absent, or the output holds another dataset.
      DatasetError: the pipeline failed, or no line was good.
    """
    with _temporary_folder():
        return _make_or_keep(options)


def _make_or_keep(options: Options) -> tuple[Dataset, bool]:
    pipeline = _pipeline(options.beam_flags, options.verbose)
    inputs, sizes = find_inputs(options.input, options.eval_input)
    job = _job(options, inputs)
    options.output.mkdir(parents=True, exist_ok=True)
    with locked(options.output):
        if not options.force and _holds(options, job, inputs, sizes):
            return Dataset.open(options.output), False
        _make(pipeline, job, inputs, sum(sizes))
    return Dataset.open(options.output), True


@contextlib.contextmanager
def _temporary_folder() -> Iterator[None]:
    """Gives Beam, and the processes that it starts, a temporary folder and removes it.

    Some of its runners leave theirs.
    """
    before, before_variable = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="embedps-", ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield
        finally:
            tempfile.tempdir = before
            if before_variable is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before_variable


def _make(pipeline: beam.Pipeline, job: Job, inputs: Sequence[InputTask], num_bytes: int) -> None:
    output = Path(job.output)
    commit = output / FILE_NAME
    # The commit goes first: from here on the directory is no dataset until it is written again.
    commit.unlink(missing_ok=True)
    (output / BAD_LINES_NAME).unlink(missing_ok=True)
    _remove_unfinished(output, job)
    job.work.path.mkdir()
    try:
        with _progress(job, inputs, num_bytes):
            _run_pipeline(pipeline, job, inputs)
        if not commit.exists():
            raise DatasetError(job.work.failure.read_text())
    finally:
        if commit.exists():
            shutil.rmtree(job.work.path)
        else:
            _remove_unfinished(output, job)


def _job(options: Options, inputs: Sequence[InputTask]) -> Job:
    return Job(
        output=str(options.output.absolute()),
        table=options.table,
        num_shards=options.num_shards,
        row_group_rows=options.row_group_rows,
        max_bad_fraction=options.max_bad_fraction,
        allow_damaged_files=options.allow_damaged_files,
        split=options.split,
        eval_files=tuple(task.name for task in inputs if task.held_out),
    )


def find_inputs(
    patterns: Sequence[str], eval_patterns: Sequence[str] = ()
) -> tuple[list[InputTask], list[int]]:
    """Returns the files that the patterns match, sorted by path, and their sizes in bytes."""
    held_out = _match("--eval-input", eval_patterns)
    sizes = _match("--input", patterns)
    both = sorted(set(sizes) & set(held_out))
    if both:
        raise UsageError(f"--input and --eval-input must not both match {both[0]}")
    sizes |= held_out
    paths = sorted(sizes)
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    inputs = [
        InputTask(
            index=i,
            path=path,
            name=path[len(folder) :].lstrip("/"),
            bytes=sizes[path],
            held_out=path in held_out,
        )
        for i, path in enumerate(paths)
    ]
    return inputs, [sizes[path] for path in paths]


def _match(flag: str, patterns: Sequence[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for pattern in patterns:
        try:
            (match,) = FileSystems.match([pattern])
        except (BeamIOError, ValueError, OSError) as error:
            raise UsageError(f"{flag} {pattern}: cannot be listed: {error}") from None
        if not match.metadata_list:
            raise UsageError(f"{flag} {pattern}: must match a file, there is none")
        for file in match.metadata_list:
            _check_readable(flag, pattern, file.path)
            sizes[file.path] = file.size_in_bytes
    return sizes


def _check_readable(flag: str, pattern: str, path: str) -> None:
    """Raises UsageError for a local path that is no file to read: a directory, a pipe."""
    if FileSystems.get_scheme(path) is not None:
        return
    hint = f"{flag} {pattern}: must match regular files that can be read"
    if os.path.isdir(path):
        raise UsageError(f"{hint}, {path} is a directory: give {path.rstrip('/')}/* for its files")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{hint}, {path} is a pipe or a device")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{hint}, {path} is not: give it read permission, or leave it out")


def _holds(options: Options, job: Job, inputs: Sequence[InputTask], sizes: Sequence[int]) -> bool:
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
    wanted_options = json.loads(json.dumps(job.to_json()))
    held = dict(dataset.input.options)
    differing = sorted(k for k in wanted_options | held if wanted_options.get(k) != held.get(k))
    if differing:
        made = {key: held.get(key) for key in differing if key != "table"} or "another schema"
        raise UsageError(
            f"--output {options.output} holds a dataset made with {made}, wanted another "
            f"{', '.join(differing)}: {hint}"
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
    (output / TRANSFORMS_NAME).unlink(missing_ok=True)
    for path in (*(output / split for split in (*SPLITS, TRANSFORMS_FOLDER)), job.work.path):
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


def _pipeline(flags: Sequence[str], verbose: bool) -> beam.Pipeline:
    """Makes an empty pipeline of Beam's flags; raises UsageError for a flag or runner unknown."""
    name = PipelineOptions(list(flags)).view_as(StandardOptions).runner or DEFAULT_RUNNER
    try:
        runner = create_runner(name)  # first: a runner's module brings flags of its own
    except (ValueError, ImportError, AttributeError) as error:
        raise UsageError(f"--runner {name}: {error}") from None
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
    options.view_as(StandardOptions).runner = name
    direct = options.view_as(DirectOptions)
    multi_processing = direct.direct_running_mode == "multi_processing"
    if multi_processing and isinstance(runner, FnApiRunner) and not verbose:
        command = f"{sys.executable} -m pipelines.ingestion.beam_worker"
        environment = SubprocessSDKEnvironment.from_command_string(command_string=command)
        direct.direct_running_mode = "in_memory"  # any other mode has workers of its own
        runner = FnApiRunner(default_environment=environment)
    try:
        return beam.Pipeline(runner, options=options)
    except ValueError as error:
        raise UsageError(f"--runner {name}: {error}") from None


@contextlib.contextmanager
def _progress(job: Job, inputs: Sequence[InputTask], total_bytes: int) -> Iterator[None]:
    """Shows progress while the pipeline runs, from what it leaves in its directories."""
    finished = threading.Event()
    paths = [job.work.progress(f"{task.index:05d}") for task in inputs]
    shard_paths = [job.work.progress(f"{t.split}-{t.index:05d}") for t in job.shard_tasks]

    def watch() -> None:
        # Every row is parsed, then written: half of it is done when it is parsed.
        with reporter("parsing, then writing", 0, "rows") as report:
            pause = _POLL_SECS
            while not finished.wait(pause):
                began = time.monotonic()
                parsed = [numbers for path in paths if (numbers := _numbers_in(path))]
                num_bytes = sum(numbers[0] for numbers in parsed)
                rows = sum(numbers[1] for numbers in parsed)
                written = sum(sum(_numbers_in(path)) for path in shard_paths)
                total = rows if written else round(rows * total_bytes / max(num_bytes, 1))
                report.update((rows + written) // 2, max(total, rows))
                # A file each: with thousands of them, looking takes the pipeline's time.
                pause = max(_POLL_SECS, _POLL_TIMES * (time.monotonic() - began))

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _numbers_in(path: Path) -> list[int]:
    try:
        return [int(number) for number in path.read_text().split()]
    except (OSError, ValueError):  # not there yet, or just being written
        return []
