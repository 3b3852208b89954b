"""The flags of a run and of its model, as `embedps train` and `embedps plan` take them."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from embedps.config_fields import groups_of
from embedps.console import command_line, flags
from embedps.errors import UsageError
from embedps.run.config import DEFAULT_MODEL, TrainConfig
from embedps.run.model_module import find_model
from embedps.run.presets import PRESETS, preset_values
from embedps.run.run_config import RunConfig

C = TypeVar("C")


def add_model_and_data(parser: argparse.ArgumentParser) -> None:
    """Adds the flags by which a command that restores a run finds its model and its dataset."""
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="the run's model; needed if it is a module of your own, such as package.module",
    )
    parser.add_argument(
        "--data",
        type=command_line.text,
        metavar="DIR",
        help="the dataset's directory, which tells the columns (default: the run's)",
    )


class RunFlags:
    """Reads a command's flags: those of TrainConfig, of the model's Config, and its own.

    Attributes:
      parser: gets the command's own flags before `read`.
      given: the flags, after `read`.
    """

    given: argparse.Namespace

    def __init__(
        self,
        arguments: Sequence[str],
        prog: str,
        description: str,
        *,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes the parser; finds the model, whose options are flags too.

        Args:
          arguments: of the command.
          prog: what the user called it.
          description: for --help.
          defaults: of options that a run must be given and the command does not need.

        Raises:
          UsageError: there is no such model, or its Config has a field that is a flag already.
        """
        self._arguments = arguments
        self._model = _model_name(arguments, prog)
        self._module = find_model(self._model)
        self._defaults = dict(defaults or {})
        self.parser = command_line.BriefParser(prog=prog, description=description)
        self.parser.add_argument(
            "--config",
            metavar="FILE",
            help="TOML file with any of the values below, by flag name with underscores, or in a "
            "table per section, such as [cluster]; a flag overrides the file",
        )
        self.parser.add_argument(
            "--preset",
            choices=tuple(PRESETS),
            help="other defaults: small, for less than about 100,000 rows, takes smaller batches "
            "and networks, lowers the learning rates, and keeps the best checkpoint",
        )
        flags.add_flags(self.parser, TrainConfig, "training")
        self.add(self._module.Config, f"model {self._model}")
        self.parser.brief = {*groups_of(TrainConfig), f"model {self._model}"}

    def add(self, config: type, title: str) -> None:
        """Adds the flags of another config, under a title in --help.

        Raises:
          UsageError: one of them is a flag already.
        """
        try:
            flags.add_flags(self.parser, config, title)
        except argparse.ArgumentError as error:
            raise UsageError(
                f"{self._model}.Config has a field that is a flag already: {error}"
            ) from error

    def read(self) -> RunConfig:
        """Reads the flags, and the values of presets and of the file that they name.

        Raises:
          UsageError: a flag is unknown, or its value is not allowed.
        """
        self.given = self.parser.parse_args(self._arguments)
        configs = (TrainConfig, self._module.Config)
        values = self._defaults | preset_values(self.given.preset, self._model, *configs)
        values |= flags.read_file(self.given.config, *configs)
        config = flags.make(TrainConfig, self.given, values)
        return RunConfig(
            config=dataclasses.replace(config, model=self._model),
            model_config=flags.make(self._module.Config, self.given, values),
        )

    def make(self, config: type[C]) -> C:
        """Makes a config that was added, of the flags that `read` found."""
        return flags.make(config, self.given, {})


def _model_name(arguments: Sequence[str], prog: str) -> str:
    """Reads only the model's name from the flags, or from the file that they name."""
    first = command_line.Parser(prog=prog, add_help=False)
    first.add_argument("--model")
    first.add_argument("--config")
    early, _ = first.parse_known_args(arguments)
    if early.model is not None:
        return str(early.model)
    return str(flags.read_file(early.config).get("model", DEFAULT_MODEL))
