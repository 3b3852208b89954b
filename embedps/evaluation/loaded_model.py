"""A trained model in this process, to score records with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.data.columns import Columns
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import MISSING_CLASS
from embedps.data.transforms_digest import difference, stored_digest
from embedps.data.unit_reader import NUMERICS
from embedps.engine.click_model import ClickModel
from embedps.engine.corpus_metrics import encoder
from embedps.engine.kept_examples import predicted_labels
from embedps.engine.recommender import Recommender
from embedps.engine.unit_functions import explain
from embedps.errors import UsageError
from embedps.evaluation.example_scores import ExampleScorer
from embedps.evaluation.item_file import write_items
from embedps.evaluation.restored_model import RestoredModel
from embedps.run.opened_run import OpenedRun, open_run
from embedps.scheduling.ledger import Unit
from embedps.tables.tiered import Tiered


def load(
    model_dir: Path | str,
    *,
    number: int | str | None = None,
    data: Path | str | None = None,
    model: str | None = None,
    recommender: Recommender | None = None,
    uncalibrated: bool = False,
) -> LoadedModel:
    """Loads a run's model from a checkpoint.

    Args:
      model_dir: the model directory that `embedps train` was given.
      number: of the checkpoint's manifest, or a ref that names it; the newest by default.
      data: the dataset's directory; the run's by default.
      model: the run's model, if it is a module of your own.
      recommender: the run's model, if it was given from Python.
      uncalibrated: leave out the layer that `embedps calibrate` fitted.

    Raises:
      UsageError: the directory is not of a run, has no checkpoint, or is of another model; or the
        layer was fitted on another checkpoint.
      CorruptCheckpointError: a file is absent, or differs from what was written.
      DimMismatchError: the checkpoint is of another model.
    """
    run = open_run(model_dir, data=data, model=model, recommender=recommender)
    return load_from(run, number=number, uncalibrated=uncalibrated, tells=False)


def load_from(
    run: OpenedRun,
    *,
    number: int | str | None = None,
    uncalibrated: bool = False,
    tells: bool = True,
    memory: Tiered | None = None,
) -> LoadedModel:
    """Loads the model of a run that is open; see `load`, and `RestoredModel` of `memory`."""
    manifest = run.manifest(number)
    recommender = run.calibrated(manifest, uncalibrated=uncalibrated, tells=tells)
    return LoadedModel(
        recommender, run.dataset, run.directory, manifest, seed=run.seed, memory=memory
    )


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
        memory: Tiered | None = None,
    ) -> None:
        """Restores a checkpoint; see `load`."""
        super().__init__(recommender, dataset, directory, seed=seed, memory=memory)
        self.number = manifest.number
        self.apply(manifest)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that records must have: those that the model's call depends on."""
        return self._model.output_columns.names

    def predict(self, records: Any) -> dict[str, npt.NDArray[Any]]:
        """Scores records of features.

        Args:
          records: `columns`, of equal length: a pyarrow Table or RecordBatch, a data frame, or a
            mapping of names to arrays or lists. Labels and weights are not needed, unless the
            model's call uses them. A null number is NaN, a null id the missing id, a null list
            empty; labels, weights, keys and times must not be null. Other columns are ignored. Raw
            records become features by `embedps.Transforms`.

        Returns:
          What the model's call returns, by name: "score" if that is one tensor, the names of the
          output layers if it is a functional model with several outputs. A click model's
          score is the probability of a click, float32 [records].

        Raises:
          UsageError: a column is absent, or has another type, or the model has no call; or other
            transforms made the records.
          DatasetError: lists of a record differ in length, where the model needs equal ones.
        """
        table = _as_table(records)
        found = stored_digest(table.schema.metadata)
        if other := difference(found, self._model.transforms, made_of="the model's dataset"):
            raise UsageError(f"the records: {other}")
        columns = _features(table, self._model.output_columns, self._model.recommender.missing_id)
        try:
            return {name: value.numpy() for name, value in self._predict(columns).items()}
        except tf.errors.OpError as error:
            raise explain(error) from error

    def label_predictions(self, dataset: Dataset) -> dict[str, str]:
        """Names the predictions of the dataset's binary labels; see `predicted_labels`."""
        return predicted_labels(self._model, dataset)

    @property
    def click_label(self) -> str | None:
        """The label whose chance is the prediction "score"; None if it is no ClickModel."""
        model = self._model.model
        return model.label if isinstance(model, ClickModel) else None

    def example_scores(
        self,
        dataset: Dataset,
        units: Iterable[Unit],
        *,
        batch_rows: int,
        columns: Sequence[str],
        prefix: str,
    ) -> Iterator[pa.Table]:
        """Scores examples of a dataset, in order; see ExampleScorer, which raises too."""
        scorer = ExampleScorer(
            self._model,
            self._predict,
            dataset,
            batch_rows=batch_rows,
            also=columns,
            prefix=prefix,
        )
        return scorer.tables(units)

    def export_items(self, path: str | Path) -> int:
        """Writes the vectors of the items that the model's metrics rank, with their ids.

        The file is Parquet: the column of the ids, under its name (or "item"), and "vector", lists
        of float32 of one length. It is there once it is complete. Memory is that of one batch.
        `embedps.evaluation.item_file.read_items` reads it.

        Returns:
          How many items it has.

        Raises:
          UsageError: the model has no candidates, or several; or the file cannot be written.
        """
        if len(self._model.candidates) != 1:
            raise UsageError(
                "items are exported of a model with metrics over one embedps.Candidates, but "
                f"{type(self._model.model).__name__} has {len(self._model.candidates)}"
            )
        (candidates,) = self._model.candidates
        encode = encoder(candidates, self._model.embeddings, self._collection, in_any_batch=True)
        name = candidates.identifier or "item"
        return write_items(Path(path), name, candidates.encode_batches(encode))


def _features(table: pa.Table, columns: Columns, missing_id: int) -> dict[str, Any]:
    """Makes a batch of a table's columns, as the native reader makes it of a file's."""
    numbers = [_numbers(table, name) for name in columns.numerics]
    empty = np.zeros([table.num_rows, 0], np.float32)
    batch = {NUMERICS: tf.constant(np.stack(numbers, axis=1) if numbers else empty)}
    batch |= {n: tf.constant(v) for n, v in zip(columns.numerics, numbers, strict=True)}
    for label in columns.labels:
        if not label.optional:
            _check_whole(table, label.name)
        is_class = label.kind == "classes"
        found = _ids(table, label.name, MISSING_CLASS) if is_class else _numbers(table, label.name)
        batch[label.name] = tf.constant(found)
    batch |= {n: tf.constant(_weights(table, n)) for n in columns.weights}
    batch |= {n: tf.constant(_integers(table, n)) for n in columns.integers}
    batch |= {n: tf.constant(_ids(table, n, missing_id)) for n in columns.ids}
    batch |= {n: _id_lists(table, n, missing_id) for n in columns.id_lists}
    return batch | {n: _float_lists(table, n) for n in columns.float_lists}


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
    if (count := table.column_names.count(name)) > 1:
        raise UsageError(f"the records must have column {name!r} once but have it {count} times")
    column = table[name].combine_chunks()
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _single(table: pa.Table, name: str) -> pa.Array:
    """Gives a column of single values, also if each is in a list of its own."""
    column = _column(table, name)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return column
    for row, length in enumerate(pc.list_value_length(column).to_pylist()):
        if length != 1:
            raise UsageError(
                f"column {name!r} is read as one number per row: its lists must have one element "
                f"but record {row} has {length or 0}"
            )
    return pc.list_flatten(column)


def _numbers(table: pa.Table, name: str) -> npt.NDArray[np.float32]:
    return _as_numbers(_single(table, name), name, "numbers")


def _as_numbers(column: pa.Array, name: str, wanted: str) -> npt.NDArray[np.float32]:
    kinds = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise _wrong_type(name, wanted, column.type)
    found = column.cast(pa.float32(), safe=False).fill_null(float("nan"))
    numbers = np.array(found.to_numpy(zero_copy_only=False), np.float32)
    if len(infinite := np.flatnonzero(np.isinf(numbers))):
        place = int(infinite[0])
        raise UsageError(
            f"column {name!r} must have {wanted} that are finite in float32, or NaN where they are "
            f"missing, but value {place} is {column[place]}"
        )
    return numbers


def _weights(table: pa.Table, name: str) -> npt.NDArray[np.float32]:
    _check_whole(table, name)
    return _numbers(table, name)


def _ids(table: pa.Table, name: str, missing_id: int) -> npt.NDArray[np.int64]:
    return _as_ids(_single(table, name), name, "int64 ids", missing_id)


def _integers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    _check_whole(table, name)
    return _as_ids(_single(table, name), name, "int64 numbers", 0)


def _as_ids(column: pa.Array, name: str, wanted: str, missing_id: int) -> npt.NDArray[np.int64]:
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise _wrong_type(name, wanted, column.type)
    try:
        column = column.cast(pa.int64()).fill_null(missing_id)
    except pa.ArrowException as error:
        raise UsageError(f"column {name!r} must have {wanted}: {error}") from error
    return np.array(column.to_numpy(zero_copy_only=False), np.int64)


def _id_lists(table: pa.Table, name: str, missing_id: int) -> tf.RaggedTensor:
    wanted = "lists of int64 ids"
    values, lengths = _lists(table, name, wanted)
    return _ragged(_as_ids(values, name, wanted, missing_id), lengths)


def _float_lists(table: pa.Table, name: str) -> tf.RaggedTensor:
    wanted = "lists of numbers"
    values, lengths = _lists(table, name, wanted)
    return _ragged(_as_numbers(values, name, wanted), lengths)


def _lists(table: pa.Table, name: str, wanted: str) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Gives the values of a column's lists, one after another, and the lists' lengths."""
    column = _column(table, name)
    if pa.types.is_null(column.type):
        column = column.cast(pa.list_(pa.null()))
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise _wrong_type(name, wanted, column.type)
    lengths = pc.list_value_length(column).fill_null(0).cast(pa.int64())
    return pc.list_flatten(column), np.array(lengths.to_numpy(zero_copy_only=False))


def _ragged(values: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)


def _check_whole(table: pa.Table, name: str) -> None:
    if nulls := _single(table, name).null_count:
        raise UsageError(
            f"column {name!r} must not have nulls but has {nulls} in {table.num_rows} records"
        )


def _wrong_type(name: str, wanted: str, kind: pa.DataType) -> UsageError:
    return UsageError(
        f"column {name!r} must have {wanted} but has {kind}: make features of raw records by "
        "embedps.Transforms"
    )
