"""The optimizer options of a run: learning rates, and how the network is updated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from embedps.config_fields import MAX_COUNT, check, option
from embedps.errors import UsageError
from embedps.tables.specs import TableSpec, learning_rate_of

MAX_RATE = 1e30
"""The highest learning rate; it is a float32."""

DenseOptimizer: TypeAlias = Literal[
    "sgd", "adagrad", "adam", "adamw", "lion", "rmsprop", "adadelta", "adamax", "ftrl"
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How the embedding tables and the network learn.

    A table's own optimizer is part of its TableSpec; here is what a run changes of it.
    """

    sparse_learning_rate: float = option(
        0.05,
        "learning rate of the embedding tables, unless their optimizers bring one",
        above=0,
        most=MAX_RATE,
    )
    dense_learning_rate: float = option(
        0.001, "learning rate of the network", above=0, most=MAX_RATE
    )
    dense_optimizer: DenseOptimizer = option(
        "adam", "optimizer of the network, unless the model brings its own"
    )

    dense_weight_decay: float = option(
        0.0,
        "a step first takes this share of the network's weights, times the learning rate",
        least=0,
        most=MAX_RATE,
    )
    dense_clip_norm: float = option(
        0.0,
        "largest norm of a step's gradients of the network, all together; 0 is no limit",
        least=0,
        most=MAX_RATE,
    )
    row_clip_norm: float = option(
        0.0,
        "largest norm of a step's gradient of each row; 0 is no limit",
        least=0,
        most=MAX_RATE,
    )
    table_optimizer: tuple[str, ...] = option(
        (),
        "numbers of single tables' optimizers, such as item:learning_rate=0.01,weight_decay=1e-5, "
        "and clip_norm, for which row_clip_norm does not hold then",
        metavar="TABLE[,TABLE]:SETTING=X[,SETTING=X]",
        several=True,
    )
    freeze: tuple[str, ...] = option(
        (),
        "tables whose rows stay as they are, before that step of the run if it is given: training "
        "makes, updates and evicts none",
        metavar="TABLE[,TABLE][:STEP]",
        several=True,
    )
    rates_batch_size: int = option(
        0,
        "examples per update that both learning rates are meant for: with others, they are "
        "multiplied by the ratio of the two (Goyal et al. 2017); 0 takes them as they are",
        least=0,
        most=MAX_COUNT,
    )
    schedule: Literal["constant", "linear", "cosine"] = option(
        "constant", "how both learning rates fall to 0 over the run, by units"
    )
    warmup: float = option(
        0.0, "share of the run in which both learning rates rise from 0", least=0, below=1
    )

    def __post_init__(self) -> None:
        check(self)
        self._frozen()
        self._settings()

    def declared(self, tables: Sequence[TableSpec]) -> tuple[TableSpec, ...]:
        """Gives a model's tables as this config declares them.

        Raises:
          UsageError: it names a table that the model does not have.
        """
        found = {table.name: table for table in tables}
        frozen, settings = self._frozen(), self._settings()
        for flag, names in (("freeze", frozen), ("table-optimizer", settings)):
            if absent := [name for name in names if name not in found]:
                raise UsageError(
                    f"--{flag} {absent[0]}: there is no such table, the model has "
                    f"{', '.join(found)}"
                )
        for name, steps in frozen.items():
            fields = {"trainable": False} if steps is None else {"frozen_steps": steps}
            found[name] = dataclasses.replace(found[name], **fields)
        for name, numbers in settings.items():
            optimizer = found[name].optimizer
            known = [field.name for field in dataclasses.fields(optimizer)]
            if unknown := [setting for setting in numbers if setting not in known]:
                raise UsageError(
                    f"--table-optimizer {name}: {optimizer.kind} has no {unknown[0]}, it has "
                    f"{', '.join(known)}"
                )
            try:
                changed = dataclasses.replace(optimizer, **numbers)
            except UsageError as error:
                raise UsageError(f"--table-optimizer {name}: {error}") from None
            found[name] = dataclasses.replace(found[name], optimizer=changed)
        return tuple(found.values())

    def row_rate(self, tables: Sequence[TableSpec]) -> float:
        """Gives the learning rate that the tables have, or those of them that bring none."""
        own = learning_rate_of(tables)
        return self.sparse_learning_rate if own is None else own

    def _settings(self) -> dict[str, dict[str, float]]:
        """Gives the numbers of optimizers by table."""
        found: dict[str, dict[str, float]] = {}
        for each in self.table_optimizer:
            names, _, settings = each.partition(":")
            pairs = [pair.partition("=") for pair in settings.split(",")]
            try:
                numbers = {name: float(number) for name, _, number in pairs}
            except ValueError:
                numbers = {}
            if not numbers or "" in (*names.split(","), *numbers):
                raise UsageError(
                    f"table_optimizer must have TABLE[,TABLE]:SETTING=X[,SETTING=X] but got "
                    f"{each!r}"
                )
            for name in names.split(","):
                found[name] = found.get(name, {}) | numbers
        return found

    def _frozen(self) -> dict[str, int | None]:
        """Gives, by table, the first step that changes rows; None if none does."""
        found: dict[str, int | None] = {}
        for each in self.freeze:
            names, colon, steps = each.partition(":")
            if "" in names.split(",") or (colon and not steps.isdecimal()):
                raise UsageError(f"freeze must have TABLE[,TABLE][:STEP] but got {each!r}")
            found |= dict.fromkeys(names.split(","), int(steps) if colon else None)
        return found

    def rate_factor(self, share: float) -> float:
        """Gives the factor of the learning rates after a share of the run, from 0 to 1."""
        if share < self.warmup:
            return share / self.warmup
        left = (1 - share) / (1 - self.warmup)
        if self.schedule == "linear":
            return left
        return 1.0 if self.schedule == "constant" else (1 - math.cos(math.pi * left)) / 2

    @property
    def is_constant(self) -> bool:
        """Whether the learning rates stay as they are."""
        return self.schedule == "constant" and not self.warmup
