"""Scores files with a loaded model: a file of scores per file, with its rows in order."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from embedps.console.lines import say
from embedps.data.arrow_errors import UNREADABLE
from embedps.data.dataset import Dataset
from embedps.data.transforms_digest import difference, no_digest, stored_digest
from embedps.errors import DatasetError, UsageError
from embedps.evaluation.loaded_model import LoadedModel
from embedps.evaluation.score_column import score_column
from embedps.storage.file_io import replacing, write_bytes

PLAN_NAME = "_predict.json"
_FORMAT = "embedps.predict"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredFile:
    """A file to score.

    Attributes:
      path: the file.
      output: where its scores go, relative to the output directory.
      bytes: its size.
      modified: its time of modification, in nanoseconds.
    """

    path: Path
    output: str
    bytes: int
    modified: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoringPlan:
    """What an output directory is of; the directory keeps it, so that a rerun can go on.

    Attributes:
      model_dir: of the run.
      checkpoint: the manifest's number.
      raw: whether the files have raw records.
      keep: the input's columns that the output has too.
      calibration: the layer of the scores, as its file has it; None if there is none.
      files: in order.
    """

    model_dir: str
    checkpoint: int
    raw: bool
    keep: tuple[str, ...]
    calibration: Mapping[str, Any] | None = None
    files: tuple[ScoredFile, ...]

    def to_json(self) -> dict[str, Any]:
        """Gives the plan as `_predict.json` has it."""
        files = [{**dataclasses.asdict(f), "path": str(f.path)} for f in self.files]
        return {
            "format": _FORMAT,
            "model_dir": self.model_dir,
            "checkpoint": self.checkpoint,
            "raw": self.raw,
            "keep": list(self.keep),
            "calibration": self.calibration,
            "files": files,
        }

    def save(self, output: Path) -> None:
        """Writes the plan into an output directory."""
        write_bytes(output / PLAN_NAME, (json.dumps(self.to_json(), indent=1) + "\n").encode())

    def check(self, output: Path, stored: Mapping[str, Any]) -> None:
        """Checks that an output directory is of this plan.

        Raises:
          UsageError: it is of another.
        """
        for name, ours in self.to_json().items():
            if stored.get(name) != ours:
                whole = {"files": "other files", "calibration": "another calibration, or none"}
                what = whole.get(name, f"{name} {stored.get(name)!r}")
                raise UsageError(
                    f"--output {output} has scores of {what}: give another directory, or remove "
                    "this one"
                )

    def unfinished(self, output: Path) -> list[ScoredFile]:
        """Lists the files that have no scores yet."""
        return [file for file in self.files if not (output / file.output).exists()]


def read_plan(output: Path) -> dict[str, Any] | None:
    """Reads the plan of an output directory; None if the directory is empty or absent.

    Raises:
      UsageError: it has something else.
    """
    try:
        stored = json.loads((output / PLAN_NAME).read_bytes())
        if stored["format"] == _FORMAT and isinstance(stored["checkpoint"], int):
            return dict(stored)
    except FileNotFoundError:
        if not output.exists() or (output.is_dir() and not any(output.iterdir())):
            return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UsageError(
        f"--output must be an empty directory or one of an earlier prediction, but {output} has "
        "something else"
    )


def check_files(paths: Sequence[Path], dataset: Dataset, *, raw: bool) -> None:
    """Refuses files whose values are not what the dataset's transforms make of raw ones.

    Prints a line if a file does not say it. Files that are not Parquet have raw records.

    Args:
      raw: whether the transforms are to be applied to the files.

    Raises:
      UsageError: a file is of other transforms, or has features already.
    """
    told = raw
    for path in paths:
        try:
            found = stored_digest(pq.read_metadata(path).metadata)
        except (pa.ArrowException, UnicodeDecodeError):
            continue
        if raw and found:
            raise UsageError(f"{path} has features, and no raw records: leave out --raw")
        wanted, made_of = dataset.transforms_digest, str(dataset.directory)
        if other := difference(found, wanted, made_of=made_of):
            raise UsageError(f"{path}: {other}")
        if not found and dataset.learned and not told:
            say(f"{path} {no_digest(dataset.learned)}")
            told = True


class RawRecords(Protocol):
    """Some records of a file of raw ones; see pipelines/ingestion/raw_records.py."""

    @property
    def features(self) -> pa.RecordBatch: ...
    @property
    def readable(self) -> npt.NDArray[np.bool_]: ...
    @property
    def kept(self) -> pa.RecordBatch: ...
    @property
    def reasons(self) -> Mapping[int, str]: ...


class RawReader(Protocol):
    """Reads files of raw records."""

    def read(self, path: Path) -> Iterator[RawRecords]: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileScorer:
    """Scores files.

    Attributes:
      model: the model.
      raw: reads files of raw records as features; None if the files have features.
      keep: the input's columns that the output has too.
      batch_rows: the most rows at a time.
      workers: how many batches are scored at a time.
      on_progress: called with the rows that were scored since.
    """

    model: LoadedModel
    raw: RawReader | None
    keep: Sequence[str]
    batch_rows: int
    workers: int
    on_progress: Callable[[int], None]

    def run(self, files: Sequence[ScoredFile], output: Path) -> None:
        """Scores files; each file of scores is there once it is complete.

        A raw record that cannot be read has null scores, and a line tells of the first of a file.

        Raises:
          UsageError: a file lacks a column, or a column has another type.
          DatasetError: a file cannot be read.
        """
        pending: collections.deque[tuple[ScoredFile, Any]] = collections.deque()
        with (
            contextlib.ExitStack() as open_file,
            concurrent.futures.ThreadPoolExecutor(self.workers) as pool,
        ):
            writer: pq.ParquetWriter | None = None

            def write_next() -> None:
                nonlocal writer
                file, scores = pending.popleft()
                if scores is None:
                    writer = None
                    open_file.close()
                    return
                table: pa.Table = scores.result()
                if writer is None:
                    target = output / file.output
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path = open_file.enter_context(replacing(target, sync=True))
                    made = pq.ParquetWriter(path, table.schema, compression="zstd")
                    writer = open_file.enter_context(made)
                writer.write_table(table)
                self.on_progress(table.num_rows)

            try:
                for file in files:
                    faults = _Faults(file.path)
                    for batch in self._batches(file.path):
                        if not isinstance(batch, pa.RecordBatch):
                            faults.add(batch.reasons)
                        pending.append((file, pool.submit(self._score, file.path, batch)))
                        while len(pending) > 2 * self.workers:
                            write_next()
                    pending.append((file, None))
                    faults.tell()
                while pending:
                    write_next()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch | RawRecords]:
        """Reads a file; at least one batch, which may be empty."""
        if self.raw is not None:
            yield from self.raw.read(path)
            return
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                names = file.schema_arrow.names
                read = list(dict.fromkeys((*self.model.columns, *self.keep)))
                for name in read:
                    if name not in names:
                        raise UsageError(
                            f"{path} must have column {name!r}, it has {', '.join(names)}"
                        )
                    if (count := names.count(name)) > 1:
                        raise UsageError(f"{path} must have column {name!r} once, it has {count}")
                if file.metadata.num_rows == 0:
                    schema = pa.schema([file.schema_arrow.field(name) for name in read])
                    yield pa.RecordBatch.from_pylist([], schema=schema)
                yield from file.iter_batches(self.batch_rows, columns=read)
        except UNREADABLE as error:
            message = " ".join(str(error).split())
            raise DatasetError(f"{path} cannot be read as a Parquet file: {message}") from error

    def _score(self, path: Path, batch: pa.RecordBatch | RawRecords) -> pa.Table:
        features: Any = batch
        kept: Any = batch
        places = None
        if not isinstance(batch, pa.RecordBatch):
            features, kept, readable = batch.features, batch.kept, batch.readable
            if not readable.all():
                places = pa.array(np.cumsum(readable) - 1, mask=~readable)
        try:
            scores = self.model.predict(features)
        except (DatasetError, UsageError) as error:
            raise type(error)(f"{path}: {error}") from error
        columns: dict[str, pa.Array] = {name: kept.column(name) for name in self.keep}
        for name, values in scores.items():
            if name in self.keep:
                raise UsageError(f"--keep {name}: the model's scores have that name")
            column = score_column(name, values, features.num_rows)
            columns[name] = column if places is None else column.take(places)
        return pa.table(columns)


class _Faults:
    """Counts the records of a file that cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path, self._count, self._first = path, 0, ""

    def add(self, reasons: Mapping[int, str]) -> None:
        if reasons and not self._count:
            line = min(reasons)
            self._first = f"{line}: {reasons[line]}"
        self._count += len(reasons)

    def tell(self) -> None:
        """Prints a line, if there are any."""
        if self._count:
            say(
                f"{self._path}: {self._count:,} records cannot be read and have null scores, the "
                f"first at {self._first}",
            )
