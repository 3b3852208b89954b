"""Writes one page of a run that a person can send: `embedps report MODEL`.

The page is one HTML file without scripts or downloads: scores over steps, scores by slice, the
calibration, tables, speed, failures and options. It can be written while the run trains.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.run_statistics import read_run_statistics
from embedps.checkpoint.tools.run_texts import RunTexts
from embedps.config_fields import check, option
from embedps.console import command_line, flags
from embedps.console.lines import say
from embedps.errors import EmbedpsError, UsageError
from embedps.run.calibration_file import read_calibration
from embedps.run.report_page import Report
from embedps.run.summary import SUMMARY_NAME, read_evaluations, read_json
from embedps.score_names import slice_of
from embedps.storage.file_io import write_bytes
from embedps.storage.object_store import as_path

FILE_NAME = "report.html"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """A report: of which run, and where to."""

    model_dir: str = option(
        dataclasses.MISSING, "the model directory", metavar="MODEL", positional=True
    )
    output: Path | None = option(
        None, f"the file to write (default: {FILE_NAME} in MODEL)", metavar="FILE"
    )

    def __post_init__(self) -> None:
        check(self)


def main(arguments: Sequence[str], prog: str = "python -m embedps.report") -> int:
    """Writes a report."""
    say(f"{report(flags.read(ReportConfig, arguments, prog, __doc__))}")
    return 0


def report(config: ReportConfig) -> Path:
    """Writes a report; returns its path.

    Raises:
      UsageError: the directory is of no run, or the page cannot be written.
    """
    model_dir = as_path(config.model_dir)
    evaluations = read_evaluations(model_dir)
    summary = read_json(model_dir / SUMMARY_NAME)
    if not (evaluations or summary):
        raise UsageError(
            f"{model_dir} must have scores or a summary of a run but has neither: train first"
        )
    try:
        layer = read_calibration(model_dir)
        calibration = "" if layer is None else layer.describe()
    except UsageError as error:
        calibration = str(error)
    found = Report(
        name=model_dir.name or str(model_dir),
        evaluations=evaluations,
        summary=summary,
        statistics=read_run_statistics(model_dir, has_ended=summary.get("finished") is True),
        calibration=calibration,
        texts=_texts(model_dir, evaluations[-1] if evaluations else {}),
    )
    path = config.output or model_dir / FILE_NAME
    try:
        write_bytes(path, found.page().encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def _texts(model_dir: Path, line: dict[str, object]) -> dict[int, str]:
    """Finds the texts of ids that are slices, where the dataset has kept them."""
    values = {slice_of(name).partition("=")[2] for name in line}
    ids = [int(v) for v in values if v.lstrip("-").isdigit() and v.isascii() and len(v) < 20]
    ids = [each for each in ids if -(2**63) <= each < 2**63]
    try:
        return RunTexts.of_all(CheckpointDirectory(model_dir)).of(ids) if ids else {}
    except EmbedpsError:
        return {}


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
