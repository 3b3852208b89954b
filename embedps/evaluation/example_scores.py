"""The scores of each example of a split, in a Parquet file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from embedps.console.progress import ProgressLine
from embedps.data.columns import Columns
from embedps.data.dataset import Dataset
from embedps.data.unit_reader import NUMERICS
from embedps.engine.step_model import StepModel
from embedps.engine.unit_functions import explain
from embedps.errors import UsageError
from embedps.evaluation.score_column import score_column
from embedps.scheduling.ledger import Unit
from embedps.storage.file_io import replacing

FILE, ROW = "file", "row"
_GROUP_ROWS = 1 << 16

Predict = Callable[[dict[str, Any]], Mapping[str, tf.Tensor]]


class ExampleScorer:
    """Scores examples one by one: the file and row of each, its labels, its predictions."""

    def __init__(
        self,
        model: StepModel,
        predict: Predict,
        dataset: Dataset,
        *,
        batch_rows: int,
        also: Sequence[str] = (),
        prefix: str = "",
    ) -> None:
        """Finds out which columns to read.

        Args:
          model: whose predictions they are.
          predict: computes the predictions of a batch of the columns that they depend on.
          dataset: of the examples, whose files are named by their paths in it.
          batch_rows: examples per batch.
          also: further columns of the dataset to give, beside the labels that the model reads.
          prefix: of the predictions' names, so that they differ from those of columns.

        Raises:
          UsageError: the model has no call, or two columns would have one name.
        """
        self._predict = predict
        self._needed = model.output_columns
        self._given = tuple(dict.fromkeys((*model.columns.label_names, *also)))
        columns = Columns.of(dataset, {*self._needed.names, *self._given})
        self._reader = columns.reader(
            batch_rows=batch_rows, shuffle_rows=0, missing_id=model.recommender.missing_id
        )
        self._files = {
            str(dataset.absolute_path(file)): file.path
            for split in dataset.splits.values()
            for file in split.files
        }
        self._prefix = prefix
        predictions = [prefix + name for name in model.prediction_names]
        names = [FILE, ROW, *self._given, *predictions]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(
                f"a file of scores must have one column {repeated[0]!r}, but the labels and "
                f"predictions are {', '.join(names[2:])}, beside {FILE} and {ROW}"
            )

    def tables(self, units: Iterable[Unit]) -> Iterator[pa.Table]:
        """Scores units in order; each table has the rows of a batch.

        Raises:
          DatasetError: a file cannot be read.
        """
        for unit in units:
            try:
                yield from self._unit(unit)
            except tf.errors.OpError as error:
                raise explain(error) from error

    def _unit(self, unit: Unit) -> Iterator[pa.Table]:
        reader = self._reader.open(unit.path, unit.first_row, unit.num_rows)
        first = unit.first_row
        while (rows := int((batch := self._reader.next(reader)).num_rows)) > 0:
            given = {name: batch.columns[name] for name in (*self._needed.names, NUMERICS)}
            columns: dict[str, Any] = {
                FILE: pa.repeat(self._files[unit.path], rows),
                ROW: np.arange(first, first + rows),
            }
            columns |= {name: batch.columns[name].numpy() for name in self._given}
            for name, value in self._predict(given).items():
                columns[self._prefix + name] = score_column(name, value.numpy(), rows)
            yield pa.table(columns)
            first += rows


def read_scores(tables: Iterable[pa.Table], examples: int, title: str) -> dict[str, Any]:
    """Joins the columns of scores, and shows the progress.

    Args:
      tables: as `ExampleScorer` gives them: file, row, then the columns.
      examples: of all tables.
      title: of the progress line.

    Returns:
      By name, the values of each column [examples].
    """
    kept: dict[str, list[Any]] = {}
    with ProgressLine(title, examples, unit="examples") as line:
        done = 0
        for table in tables:
            for name in table.column_names[2:]:
                kept.setdefault(name, []).append(table[name].to_numpy())
            done += table.num_rows
            line.update(done)
    return {name: np.concatenate(parts) for name, parts in kept.items()}


def write_scores(path: Path, tables: Iterable[pa.Table], metadata: Mapping[str, str]) -> int:
    """Writes scores; the file is there once it is complete. Memory is that of a row group.

    Args:
      tables: the scores, one table or more.

    Returns:
      How many examples there are.

    Raises:
      UsageError: the file cannot be written.
    """
    rows = 0
    try:
        with replacing(path, sync=True) as temporary, contextlib.ExitStack() as stack:
            writer = None
            for table in _groups(tables):
                if writer is None:
                    schema = table.schema.with_metadata(dict(metadata))
                    writer = stack.enter_context(pq.ParquetWriter(temporary, schema))
                writer.write_table(table.cast(schema))
                rows += table.num_rows
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    return rows


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Joins small tables to ones of a row group each."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(each.num_rows for each in waiting) >= _GROUP_ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
