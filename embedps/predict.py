"""Scores files with a trained model: `embedps predict --model-dir DIR --input FILES`.

Each file becomes one of scores, with as many rows in the same order. Run the command again to go on
after an interruption: files that are done are kept, and the same checkpoint is used.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedps.checkpoint.refs import manifest_option, number_of
from embedps.config_fields import MAX_COUNT, check_text, option
from embedps.console import command_line, flags
from embedps.console.lines import say
from embedps.console.progress import ProgressLine
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.features.transforms import Transforms
from embedps.run.calibration_file import to_json
from embedps.run.memory_options import MemoryOptions
from embedps.run.opened_run import RunOptions, uncalibrated_option
from embedps.storage.file_io import open_file
from embedps.storage.file_lock import FileLock

if TYPE_CHECKING:
    from embedps.pipelines.ingestion.raw_records import RawReader

_LOCK_NAME = "_predict.lock"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig(MemoryOptions, RunOptions):
    """A prediction: of which run, of which files, and where to."""

    input: tuple[str, ...] = option(
        dataclasses.MISSING,
        "Parquet files of features, such as those of a dataset, or with --raw what it was made of: "
        "paths or quoted patterns, 'data/eval/*.parquet'; ** matches folders",
        metavar="FILES",
        several=True,
    )
    output: Path = option(
        dataclasses.MISSING,
        "where the scores go: an empty directory, or that of the run to go on with",
        metavar="DIR",
    )
    raw: bool = option(
        False,
        "the files have raw records, as the dataset was made of, text or columns: its transforms "
        "make features of them",
    )
    keep: tuple[str, ...] = option(
        (),
        "columns of the input that the output has too, such as the user's id",
        metavar="COLUMN",
        several=True,
    )
    number: int | str | None = manifest_option(
        None,
        "the checkpoint's number, or a ref (default: the newest, or that of the run to go on with)",
    )
    uncalibrated: bool = uncalibrated_option()
    batch_size: int = option(
        8192, "the most rows that are scored at a time", least=1, most=MAX_COUNT
    )
    workers: int | None = option(
        None,
        "how many batches are scored at a time (default: the number of cores)",
        least=1,
        most=1024,
    )


def main(arguments: Sequence[str], prog: str = "python -m embedps.predict") -> int:
    """Scores files."""
    predict(flags.read(PredictConfig, arguments, prog, __doc__))
    return 0


def predict(config: PredictConfig) -> None:
    """Scores files; those that the output has already are kept.

    Raises:
      UsageError: a file, the output or a column is not what it must be.
      CheckpointError: the checkpoint is not there, or is damaged.
    """
    output, paths = config.output, _find(config.input)
    if any(path.parent.absolute() == output.absolute() for path in paths):
        raise UsageError(f"--output {output} must not be where the input is: give another one")
    run = config.open()
    make_raw = _raw_reader(run.dataset) if config.raw else None
    # TensorFlow takes seconds to import; wrong flags and files are reported before that.
    from embedps.evaluation.file_scoring import FileScorer, ScoringPlan, check_files, read_plan
    from embedps.evaluation.loaded_model import load_from

    stored = read_plan(output)
    newest = run.directory.latest()
    if config.number is not None:
        chosen = number_of(run.directory, config.number)
    elif stored is not None:
        chosen = stored["checkpoint"]
    else:
        if newest is None:
            raise run.has_none()
        chosen = newest.number
    layer = run.calibration(run.directory.read(chosen), uncalibrated=config.uncalibrated)
    plan = ScoringPlan(
        model_dir=str(Path(config.model_dir).absolute()),
        checkpoint=chosen,
        raw=config.raw,
        keep=config.keep,
        calibration=None if layer is None else to_json(layer),
        files=_input_files(paths),
    )
    if stored is not None:
        plan.check(output, stored)
    left = plan.unfinished(output)
    total = sum(_num_rows(file.path, raw=config.raw) for file in left)
    check_files([file.path for file in left], run.dataset, raw=config.raw)
    if not left:
        say(f"{output}: {len(paths)} of {len(paths)} files scored")
        return
    output.mkdir(parents=True, exist_ok=True)
    lock = FileLock(output / _LOCK_NAME)
    if not lock.acquire():
        raise UsageError(f"--output {output} is in use by another prediction: end that one first")
    lock.sign()
    plan.save(output)
    rows = f" ({total:,} rows)" if total else ""  # those of text files are not known
    say(
        f"scores {len(left)} of {len(paths)} files{rows} with checkpoint {chosen}"
        + ("" if newest is None or newest.number == chosen else f"; the newest is {newest.number}"),
    )
    model = load_from(run, number=chosen, uncalibrated=config.uncalibrated, memory=config.memory())
    try:
        reader = make_raw and make_raw(model.columns, plan.keep, config.batch_size)
        with ProgressLine("predict", total, unit="rows") as line:
            done = 0

            def count(rows: int) -> None:
                nonlocal done
                done += rows
                if total:
                    line.update(min(done, total))

            FileScorer(
                model=model,
                raw=reader,
                keep=plan.keep,
                batch_rows=config.batch_size,
                workers=config.workers or os.cpu_count() or 1,
                on_progress=count,
            ).run(left, output)
    finally:
        lock.release()
    say(f"{output}: {len(paths)} of {len(paths)} files scored")


def _find(patterns: Sequence[str]) -> list[Path]:
    """Lists the files that patterns match, sorted."""
    found: set[Path] = set()
    for pattern in patterns:
        matched = [Path(name) for name in glob.glob(pattern, recursive=True)]
        if not matched:
            raise UsageError(f"--input {pattern} must match a file, there is none")
        for path in matched:
            if path.is_dir():
                raise UsageError(
                    f"--input {pattern} must match files, {path} is a directory: give "
                    f"'{path}/*.parquet'"
                )
            check_text(f"--input {pattern}: a file's name", path)
            try:
                open_file(path).close()
            except OSError as error:
                raise UsageError(
                    f"--input {pattern} must match files that can be read, {path}: {error.strerror}"
                ) from error
        found |= set(matched)
    return sorted(found)


def _input_files(paths: Sequence[Path]) -> tuple[Any, ...]:
    """Names each file's output by its path below the folder that all have in common."""
    from embedps.evaluation.file_scoring import ScoredFile

    folder = os.path.commonpath([path.parent.absolute() for path in paths])
    files, outputs = [], set()
    for path in paths:
        output = str(path.absolute().relative_to(folder).with_suffix(".parquet"))
        if output in outputs:
            raise UsageError(f"--input: two files would be scored into {output}: rename {path}")
        outputs.add(output)
        stat = path.stat()
        files.append(
            ScoredFile(
                path=path.absolute(), output=output, bytes=stat.st_size, modified=stat.st_mtime_ns
            )
        )
    return tuple(files)


def _num_rows(path: Path, *, raw: bool) -> int:
    """Gives the rows of a Parquet file; 0 if the file is raw and of another kind."""
    import pyarrow.parquet as pq

    from embedps.data.arrow_errors import UNREADABLE

    try:
        return int(pq.read_metadata(path).num_rows)
    except UNREADABLE as error:
        if raw:
            return 0
        message = " ".join(str(error).split())
        raise UsageError(f"--input: {path} must be a Parquet file: {message}") from error


def _raw_reader(dataset: Dataset) -> Callable[..., RawReader]:
    """Checks that the dataset has transforms; gives the function that makes the reader."""
    from embedps.pipelines.ingestion.raw_records import RawReader

    return partial(RawReader, Transforms.of(dataset))


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
