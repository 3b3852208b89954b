"""Beam's side of a run: makes a pipeline of Beam's flags, and runs it."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner, create_runner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from embedps.errors import DatasetError, EmbedpsError, UsageError

_SILENT_WORKER = "embedps.pipelines.ingestion.beam_worker"
_LOGGING_WORKER = "apache_beam.runners.worker.sdk_worker_main"
DEFAULT_RUNNER = "FnApiRunner"
"""Not DirectRunner: it looks for a binary to download and, if it finds one, uses that engine."""


def make_pipeline(flags: Sequence[str], *, verbose: bool) -> beam.Pipeline:
    """Makes an empty pipeline.

    Args:
      verbose: whether worker processes log; Beam's own workers log each start and end.

    Raises:
      UsageError: a flag or the runner is unknown.
    """
    name = PipelineOptions(list(flags)).view_as(StandardOptions).runner or DEFAULT_RUNNER
    try:
        runner = create_runner(name)  # first: a runner's module adds flags
    except (ValueError, ImportError, AttributeError) as error:
        raise UsageError(f"--runner {name}: {error}") from None
    _check_flags(flags)
    options = PipelineOptions(list(flags))
    options.view_as(StandardOptions).runner = name
    runner = _with_workers(runner, options.view_as(DirectOptions), verbose=verbose)
    try:
        return beam.Pipeline(runner, options=options)
    except ValueError as error:
        raise UsageError(f"--runner {name}: {error}") from None


def _check_flags(flags: Sequence[str]) -> None:
    """Raises UsageError for a flag that Beam does not know."""
    parser = _BeamFlagParser(allow_abbrev=False, add_help=False)
    for options_class in PipelineOptions.__subclasses__():
        options_class._add_argparse_args(parser)
    with contextlib.redirect_stderr(io.StringIO()):
        _, unknown = parser.parse_known_args(list(flags))
    if unknown:
        raise UsageError(
            f"must be a flag of this command or of Beam: {' '.join(unknown)} "
            "(--help lists the flags)"
        )


class _BeamFlagParser(beam.options.pipeline_options._BeamArgumentParser):
    """Beam's parser; it raises UsageError and does not exit."""

    def error(self, message: str) -> None:
        raise UsageError(f"{message} (--help lists the flags)")


def _with_workers(
    runner: PipelineRunner, direct: DirectOptions, *, verbose: bool
) -> PipelineRunner:
    """Returns the runner; for several local processes one that starts them by a shell's words.

    Beam's own command is cut where the path of this Python has a space, and waits for ever.
    """
    if direct.direct_running_mode != "multi_processing" or not isinstance(runner, FnApiRunner):
        return runner
    command = f"{shlex.quote(sys.executable)} -m {_LOGGING_WORKER if verbose else _SILENT_WORKER}"
    environment = SubprocessSDKEnvironment.from_command_string(command_string=command)
    direct.direct_running_mode = "in_memory"  # any other mode starts Beam's own workers
    return FnApiRunner(default_environment=environment)


def run_pipeline(pipeline: beam.Pipeline) -> None:
    """Runs a pipeline to its end; raises DatasetError with the last line of Beam's error.

    A step's own EmbedpsError is told as it is, without what Beam puts around it.
    """
    try:
        pipeline.run().wait_until_finish()
    except Exception as error:
        logging.getLogger(__name__).debug("the pipeline failed", exc_info=True)
        lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
        message = re.sub(r" \[while running '.*'\]$", "", lines[-1].strip())
        # Another process sends an error as the text of its traceback.
        own = re.match(r"embedps\.errors\.\w+: ", message)
        if isinstance(error, EmbedpsError) or own:
            raise DatasetError(message[own.end() if own else 0 :]) from error
        raise DatasetError(f"the pipeline failed: {message} (--verbose shows where)") from error


@contextlib.contextmanager
def temporary_folder() -> Iterator[None]:
    """Gives Beam and the processes that it starts a temporary folder, and removes it at the end.

    Some of Beam's runners do not remove theirs.
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
