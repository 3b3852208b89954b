"""A Keras callback that saves checkpoints of tables, variables and optimizer while `fit` trains."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.retention import DEFAULT_KEEP, KeepPolicy
from embedps.data.dataset import Dataset
from embedps.engine.checkpoint_restore import check_tables
from embedps.engine.dense_optimizer import RAW_OPTIMIZERS, kind_of
from embedps.engine.model_interface import find_embeddings, has_own_loss
from embedps.engine.model_signature import check_signature, describe
from embedps.engine.variable_names import name_optimizer, name_variables
from embedps.errors import UsageError
from embedps.keras.input import read
from embedps.run.config import TrainConfig
from embedps.run.preparation import prepare_directory
from embedps.run.run_config import NO_DATASET, RunConfig
from embedps.run.run_lock import RunLock
from embedps.training.checkpoint_writer import CheckpointWriter

_NO_LEDGER: dict[str, Any] = {
    "dataset": "fit of Keras",
    "units_per_epoch": 0,
    "prefix": 0,
    "beyond": [],
    "doing": [],
    "attempts": [],
    "num_attempts": 0,
    "repeated": 0,
}
"""`fit` does not say which rows it has visited, so a run of the engine cannot go on from it."""


class SaveCheckpoints(tf.keras.callbacks.Callback):
    """Saves checkpoints as an engine's run does: a base, then what changed.

    `embedps.load`, `embedps evaluate` and `embedps checkpoint` read them. `fit` first restores the
    directory's last checkpoint, if there is one: tables, variables and the optimizer's state. How
    many epochs are left is for the caller to say.
    """

    def __init__(
        self,
        model_dir: Path | str,
        dataset: Dataset | Path | str | None = None,
        *,
        every_steps: int | None = None,
        keep: Sequence[KeepPolicy] = DEFAULT_KEEP,
    ) -> None:
        """Prepares to save.

        Args:
          model_dir: where to; it is made if it is absent.
          dataset: what the model is trained on, or its directory. None if it is no dataset of
            embedps: then `embedps.load` and the commands need to be told one, and a checkpoint is
            restored only into a model that is built.
          every_steps: the steps from one checkpoint to the next; by default there is one after each
            epoch. The end of `fit` saves too.
          keep: which older checkpoints stay.

        Raises:
          UsageError: `every_steps` is no positive integer.
          DatasetError: the dataset cannot be read.
        """
        super().__init__()
        self._supports_tf_logs = True  # a ParameterServerStrategy takes no other callback per batch
        if every_steps is not None and (not isinstance(every_steps, int) or every_steps < 1):
            raise UsageError(f"every_steps must be an integer from 1 on but got {every_steps!r}")
        if dataset is not None and not isinstance(dataset, Dataset | Path | str):
            raise UsageError(
                "SaveCheckpoints' dataset must be one of embedps, or its directory, but got a "
                f"{type(dataset).__name__}: leave it out if fit reads something else"
            )
        self._dataset = Dataset.open(dataset) if isinstance(dataset, Path | str) else dataset
        data = NO_DATASET if self._dataset is None else str(self._dataset.directory)
        self._config = TrainConfig.from_options(data=data, model_dir=str(model_dir), model=None)
        self._every_steps = every_steps
        self._keep = tuple(keep)
        self._open = contextlib.ExitStack()
        self._writer: CheckpointWriter | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Locks the directory and restores its last checkpoint.

        Raises:
          DirectoryInUseError: another run has it.
          DimMismatchError: it is of another model.
          CheckpointError: its last checkpoint cannot be read.
        """
        self._open.close()
        self._writer = None
        self._tables = find_embeddings(self.model).own
        model_dir = prepare_directory(self._config)
        self._open.callback(RunLock(model_dir).release)
        directory = CheckpointDirectory(model_dir)
        last = directory.latest()
        if self._is_built() or self._dataset is not None:
            self._make_variables()
            self._begin(directory, last)
        elif last is not None:
            self._open.close()
            raise UsageError(
                f"{model_dir} has a checkpoint, and a model must be built to get its variables: "
                "call the model on a batch before fit, or give SaveCheckpoints an embedps dataset"
            )

    def _begin(self, directory: CheckpointDirectory, last: Manifest | None) -> None:
        """Restores a checkpoint, and makes what writes the next ones."""
        optimizer = self.model.optimizer
        signature: dict[str, Any] = {
            "dense_optimizer": kind_of(optimizer),
            "features": [describe(f) for f in find_embeddings(self.model).features],
        }
        if self._dataset is not None:
            signature["label"] = self._dataset.label
            signature["missing_id"] = self._dataset.missing_id
            if self._dataset.transforms_digest:
                signature["transforms"] = self._dataset.transforms_digest
        named = name_variables(self.model, self._model_variables())
        anchor = {"embeddings": self._tables.anchor}  # an optimizer has slots of it
        writer = CheckpointWriter(
            directory,
            self._tables.collection,
            {**named, **name_optimizer(optimizer, named | anchor)},
            model=signature,
            keep=self._keep,
        )
        if last is not None:
            check_tables(last, self._tables.collection.tables)
            check_signature(last, signature)
            self._tables.collection.clear()
            writer.restore(last)
            self._tables.set_steps(last.step)
        RunConfig(config=self._config, model_config=None).save()
        self._open.callback(writer.close)
        self._writer = writer
        self._saved_step = self._step() if last is not None else 0
        self._replaced = self._tables.replaced

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves if it is time to."""
        if self._writer is None:  # the first step has built the model
            self._begin(CheckpointDirectory(prepare_directory(self._config)), None)
        due = self._every_steps
        if due is not None and abs(self._step() - self._saved_step) >= due:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves unless steps say when."""
        if self._every_steps is None and self._step() != self._saved_step:
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves, and lets others into the directory."""
        self._save(final=True)
        self._open.close()

    def _step(self) -> int:
        return self._tables.num_steps()

    def _save(self, *, final: bool = False) -> None:
        if self._writer is None:
            return
        step = self._step()
        if self._tables.replaced != self._replaced:  # by set_weights, load_weights, a callback
            self._writer.restart()
            self._replaced = self._tables.replaced
        self._writer.save(
            step=step,
            ledger=_NO_LEDGER,
            partially_applied=dict,
            progress={},
            final=final,
        )
        self._saved_step = step

    def _is_built(self) -> bool:
        return bool(self.model.built and find_embeddings(self.model).built)

    def _make_variables(self) -> None:
        """Makes what `fit` would make in its first step, so that it can be restored."""
        model = self.model
        if self._dataset is not None and not self._is_built():
            batches = read(
                self._dataset,
                batch_size=2,
                unit_rows=2,
                shuffle=False,
                targets=not has_own_loss(model),
            )
            batch = next(iter(batches))
            model.test_step(batch)
            model.reset_metrics()
        optimizer = model.optimizer
        if isinstance(optimizer, RAW_OPTIMIZERS):
            optimizer._create_all_weights(model.trainable_variables)
        else:
            optimizer.build(model.trainable_variables)

    def _model_variables(self) -> list[tf.Variable]:
        """Lists the variables that an engine's checkpoint of the model has, in its order."""
        others = {id(v) for metric in self.model.metrics for v in metric.variables}
        others |= {id(self._tables.anchor), id(find_embeddings(self.model).table_state)}
        return [v for v in self.model.variables if id(v) not in others]
