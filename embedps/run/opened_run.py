"""A run that was trained, as other commands open it: its config, dataset, model and checkpoints."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from embedps import config_fields
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.refs import number_of
from embedps.config_fields import option
from embedps.console.lines import say
from embedps.data.dataset import Dataset
from embedps.engine.calibration import Calibration
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.run.calibration_file import check_fresh, read_calibration
from embedps.run.preparation import open_as_trained
from embedps.run.run_config import RunConfig, read_run
from embedps.storage.object_store import as_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A run's dataset and checkpoints. No module of the user is imported before `recommender`.

    Attributes:
      path: the model directory.
      dataset: whose columns the model gets.
      directory: of the checkpoints.
      model: of the run: the recommender, or the config that makes it.
      seed: the run's.
    """

    path: Path
    dataset: Dataset
    directory: CheckpointDirectory
    model: Recommender | RunConfig
    seed: int

    def recommender(self) -> Recommender:
        """Makes the run's model over the dataset's columns.

        Raises:
          UsageError: the module's `make` returns something else.
        """
        if isinstance(self.model, Recommender):
            return self.model
        return self.model.recommender(self.dataset)

    def calibration(self, manifest: Manifest, *, uncalibrated: bool = False) -> Calibration | None:
        """Reads the layer of calibration; see `calibrated`, which raises too."""
        found = None if uncalibrated else read_calibration(self.path)
        if found is not None:
            check_fresh(found, manifest, self.path)
        return found

    def calibrated(
        self, manifest: Manifest, *, uncalibrated: bool = False, tells: bool = True
    ) -> Recommender:
        """Makes the run's model with its layer of calibration, if there is one.

        Args:
          manifest: that the layer must have been fitted on.
          uncalibrated: leave the layer out.
          tells: print a line of the layer.

        Raises:
          UsageError: the layer was fitted on another checkpoint, or is damaged; or see
            `recommender`.
        """
        found = self.calibration(manifest, uncalibrated=uncalibrated)
        if found is None:
            return self.recommender()
        if tells:
            say(f"checkpoint {manifest.number}: {found.describe()}")
        return dataclasses.replace(self.recommender(), calibration=found)

    def manifest(self, number: int | str | None = None) -> Manifest:
        """Reads a checkpoint's manifest, by its number or a ref; by default the newest.

        Raises:
          UsageError: there is no checkpoint yet, or no such ref.
          CheckpointError: there is none of that number, or it is damaged.
        """
        if number is not None:
            return self.directory.read(number_of(self.directory, number))
        manifest = self.directory.latest()
        if manifest is None:
            raise self.has_none()
        return manifest

    def has_none(self) -> UsageError:
        """Makes the error that says that there is no checkpoint yet."""
        return UsageError(f"{self.path} has no checkpoint yet: train first")


def open_run(
    model_dir: Path | str,
    *,
    data: Path | str | None = None,
    model: str | None = None,
    recommender: Recommender | None = None,
    seed: int = 0,
) -> OpenedRun:
    """Opens the run of a model directory.

    Args:
      model_dir: that `embedps train` was given.
      data: the dataset's directory; the run's by default.
      model: the run's model, if it is a module of your own.
      recommender: the run's model, if it was given from Python.
      seed: of the run, if the recommender is given.

    Raises:
      UsageError: the directory is not of a run, or is of another model.
      DatasetError: there is no dataset, or it is damaged.
    """
    path = as_path(str(model_dir))
    found: Recommender | RunConfig
    if recommender is None:
        found = run = read_run(path, model=model)
        data, seed = data or run.data, run.config.seed
    elif data is None:
        raise UsageError("with a recommender, load needs data: the dataset's directory")
    else:
        found = recommender
    directory = CheckpointDirectory(path)
    return OpenedRun(
        path=path,
        dataset=open_as_trained(data, directory),
        directory=directory,
        model=found,
        seed=seed,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options by which a command finds a run's model and its dataset."""

    model: str | None = option(
        None, "the run's model; needed if it is a module of your own, such as package.module"
    )
    data: str | None = option(
        None, "the dataset's directory, which tells the columns (default: the run's)", metavar="DIR"
    )

    def __post_init__(self) -> None:
        config_fields.check(self)


def uncalibrated_option() -> bool:
    """Declares the flag that leaves a layer out."""
    leaves_out: bool = option(
        False, "give the model's predictions without the layer of embedps calibrate"
    )
    return leaves_out


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(ModelOptions):
    """The options by which a command finds a run."""

    model_dir: str = option(
        dataclasses.MISSING, "the directory that embedps train was given", metavar="DIR"
    )

    def open(self) -> OpenedRun:
        """Opens the run; see `open_run`."""
        return open_run(self.model_dir, data=self.data, model=self.model)
