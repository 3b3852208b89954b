"""A trained model in this process, to score records with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.data.dataset import Dataset
from embedps.data.unit_reader import NUMERICS
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.evaluation.restored_model import RestoredModel
from embedps.run.run_config import read_run
from embedps.storage.object_store import as_path


def load(
    model_dir: Path | str,
    *,
    number: int | None = None,
    data: Path | str | None = None,
    model: str | None = None,
    recommender: Recommender | None = None,
) -> LoadedModel:
    """Loads a run's model from a checkpoint.

    Args:
      model_dir: the model directory that `embedps train` was given.
      number: of the checkpoint's manifest; the newest by default.
      data: the dataset's directory; the run's by default.
      model: the run's model, if it is a module of your own.
      recommender: the run's model, if it was given from Python.

    Raises:
      UsageError: the directory is not of a run, has no checkpoint, or is of another model.
      CorruptCheckpointError: a file is absent, or differs from what was written.
      DimMismatchError: the checkpoint is of another model.
    """
    path = as_path(str(model_dir))
    directory = CheckpointDirectory(path)
    manifest = directory.latest() if number is None else directory.read(number)
    if manifest is None:
        raise UsageError(f"{path} has no checkpoint yet: train first")
    seed = 0
    if recommender is None:
        run = read_run(path, model=model)
        dataset = Dataset.open(data or run.config.data)
        recommender, seed = run.recommender(dataset), run.config.seed
    elif data is None:
        raise UsageError("with a recommender, load needs data: the dataset's directory")
    else:
        dataset = Dataset.open(data)
    return LoadedModel(recommender, dataset, directory, manifest, seed=seed)


class LoadedModel(RestoredModel):
    """A model of a checkpoint. Ids that it has not seen are vectors of zeros, as in evaluation.

    Attributes:
      number: of the checkpoint's manifest.
    """

    def __init__(
        self,
        recommender: Recommender,
        dataset: Dataset,
        directory: CheckpointDirectory,
        manifest: Manifest,
        *,
        seed: int = 0,
    ) -> None:
        """Restores a checkpoint; see `load`."""
        super().__init__(recommender, dataset, directory, seed=seed)
        self.number = manifest.number
        self.apply(manifest)
        self._predict = tf.function(self._outputs, reduce_retracing=True)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that records must have."""
        reader = self._model.input(batch_rows=1, shuffle_rows=0)
        return (*reader.numerics, *reader.ids, *reader.id_lists)

    def predict(self, records: Any) -> dict[str, npt.NDArray[Any]]:
        """Scores records of features.

        Args:
          records: columns of the dataset's features, of equal length: a pyarrow Table or
            RecordBatch, a data frame, or a mapping of names to arrays or lists. A null number is
            NaN, a null id the missing id, a null list empty. Other columns are ignored. Raw records
            become features by `pipelines.transforms.Transforms`.

        Returns:
          What the model's call returns, by name: "score" if that is one tensor. A click model's
          score is the probability of a click, float32 [records].

        Raises:
          UsageError: a column is absent, or has another type.
        """
        table = _as_table(records)
        reader = self._model.input(batch_rows=1, shuffle_rows=0)
        columns: dict[str, Any] = {}
        numbers = [_numbers(table, name) for name in reader.numerics]
        columns |= {n: tf.constant(v) for n, v in zip(reader.numerics, numbers, strict=True)}
        empty = np.zeros([table.num_rows, 0], np.float32)
        columns[NUMERICS] = tf.constant(np.stack(numbers, axis=1) if numbers else empty)
        missing = reader.missing_id
        columns |= {name: tf.constant(_ids(table, name, missing)) for name in reader.ids}
        columns |= {name: _id_lists(table, name, missing) for name in reader.id_lists}
        return {name: value.numpy() for name, value in self._predict(columns).items()}

    def _outputs(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        found = self._collection.lookup(columns, insert=False)
        return self._model.outputs(columns, self._collection.combine(found))


def _as_table(records: Any) -> pa.Table:
    try:
        if isinstance(records, pa.Table):
            return records
        if isinstance(records, pa.RecordBatch):
            return pa.Table.from_batches([records])
        if isinstance(records, Mapping):
            return pa.table({name: pa.array(values) for name, values in records.items()})
        if hasattr(records, "__dataframe__"):
            return pa.Table.from_pandas(records, preserve_index=False)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise UsageError(f"records must be columns of equal length: {error}") from error
    raise UsageError(
        "records must be a pyarrow Table or RecordBatch, a data frame, or a mapping of names to "
        f"arrays but are a {type(records).__name__}"
    )


def _column(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        raise UsageError(
            f"the records have no column {name!r}, which the model reads: they have "
            f"{', '.join(table.column_names) or 'none'}"
        )
    column = table[name].combine_chunks()
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _numbers(table: pa.Table, name: str) -> npt.NDArray[np.float32]:
    column = _column(table, name)
    kinds = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise _wrong_type(name, "numbers", column.type)
    column = column.cast(pa.float32(), safe=False).fill_null(float("nan"))
    return np.array(column.to_numpy(zero_copy_only=False), np.float32)


def _ids(table: pa.Table, name: str, missing_id: int) -> npt.NDArray[np.int64]:
    return _as_ids(_column(table, name), name, missing_id)


def _as_ids(column: pa.Array, name: str, missing_id: int) -> npt.NDArray[np.int64]:
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise _wrong_type(name, "int64 ids", column.type)
    try:
        column = column.cast(pa.int64()).fill_null(missing_id)
    except pa.ArrowException as error:
        raise UsageError(f"column {name!r} must have int64 ids: {error}") from error
    return np.array(column.to_numpy(zero_copy_only=False), np.int64)


def _id_lists(table: pa.Table, name: str, missing_id: int) -> tf.RaggedTensor:
    column = _column(table, name)
    if pa.types.is_null(column.type):
        column = column.cast(pa.list_(pa.int64()))
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise _wrong_type(name, "lists of int64 ids", column.type)
    lengths = pc.list_value_length(column).fill_null(0).cast(pa.int64())
    values = _as_ids(pc.list_flatten(column), name, missing_id)
    return tf.RaggedTensor.from_row_lengths(
        values, np.array(lengths.to_numpy(zero_copy_only=False)), validate=False
    )


def _wrong_type(name: str, wanted: str, kind: pa.DataType) -> UsageError:
    return UsageError(
        f"column {name!r} must have {wanted} but has {kind}: make features of raw records by "
        "pipelines.transforms.Transforms"
    )
