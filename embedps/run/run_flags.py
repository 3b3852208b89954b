"""The flags of a run and of its model, as `embedps train` and `embedps plan` take them."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from embedps.config_fields import options_of, sections_of
from embedps.console import command_line, flags
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.run.config import DEFAULT_MODEL, TrainConfig
from embedps.run.model_module import find_model
from embedps.run.presets import PRESETS, preset_line, preset_values
from embedps.run.run_config import RunConfig

C = TypeVar("C")

_OF_NUMBERS = ("numeric_bins", "numeric_waves", "numeric_standard", "numeric_l2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Model:
    model: str = DEFAULT_MODEL


class RunFlags:
    """Reads a command's flags: those of TrainConfig, of the model's Config, and its own.

    Attributes:
      parser: whose flags are added before `read`.
      preset_line: what the preset chose and why, once `read`; empty without a preset.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        prog: str,
        description: str,
        *,
        defaults: Mapping[str, Any] | None = None,
        without: str | None = None,
    ) -> None:
        """Makes the parser; finds the model, whose options are flags too.

        Args:
          prog: what the user called it.
          description: for --help.
          defaults: of options that a run must be given and the command does not need.
          without: a section of TrainConfig whose options the command does not take.

        Raises:
          UsageError: there is no such model, or its Config has a field that is a flag already.
        """
        self._arguments = arguments
        self._model = flags.read_known(_Model, arguments, prog).model
        self._module = find_model(self._model)
        self._defaults = dict(defaults or {})
        self._of_numbers: list[str] = []
        self.parser = command_line.BriefParser(prog=prog, description=description)
        flags.add_file_flag(self.parser)
        self.parser.add_argument(
            "--preset",
            choices=tuple(PRESETS),
            metavar="NAME",
            help="other defaults: small, for less than about 100,000 rows, has small networks and "
            "batches and stops by rows held out of training; retrieval is for two_tower",
        )
        self._configs: list[type] = [TrainConfig]
        left_out = [o.name for o in options_of(TrainConfig) if without and o.section == without]
        flags.add_flags(self.parser, TrainConfig, "training", without=left_out)
        self.add(self._module.Config, f"model {self._model}")
        self.parser.brief = {*sections_of(TrainConfig), f"model {self._model}"}

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
        self._configs.append(config)

    def read(self) -> RunConfig:
        """Reads the flags, and the values of presets and of the file that they name.

        Raises:
          UsageError: a flag is unknown, or its value is not allowed.
        """
        given = self._given = self.parser.parse_args(self._arguments)
        file = flags.read_file(given.config, *self._configs)
        told = file | {name: value for name, value in vars(given).items() if value is not None}
        self._of_numbers = [name for name in _OF_NUMBERS if told.get(name)]
        kinds = TrainConfig, self._module.Config
        preset = preset_values(given.preset, self._model, told, *kinds)
        self._values = self._defaults | preset | file
        config = dataclasses.replace(self.make(TrainConfig), model=self._model)
        self.preset_line = preset_line(given.preset, config) if given.preset else ""
        return RunConfig(config=config, model_config=self.make(self._module.Config))

    def without_effect(self, dataset: Dataset) -> str:
        """Says in one line which of the flags that were given say nothing of a dataset."""
        if dataset.numeric or not self._of_numbers:
            return ""
        names = ", ".join(map(flags.flag_name, self._of_numbers))
        return f"{names}: no effect, as {dataset.directory} has no numbers"

    def make(self, config: type[C]) -> C:
        """Makes a config that was added, of what `read` found."""
        return flags.make(config, self._given, self._values)
