"""The declarations of a model: tables of rows, and the features that look them up."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from embedps.constants import COMBINERS, INITIALIZER_KINDS, MAX_ROW_FILE_WIDTH
from embedps.errors import UsageError
from embedps.tables.optimizers import Optimizer, RowwiseAdagrad

Combiner = Literal["sum", "mean", "sqrtn"]
_MAX_FLOAT32 = 3.4028234e38


@dataclasses.dataclass(frozen=True, kw_only=True)
class Initializer:
    """Initial values of rows: a pure function of (seed, table name, id), so equal on any shard.

    Attributes:
      kind: "constant" (`low`), "uniform" in [low, high), or "normal" of mean `low` and standard
        deviation `high`.
    """

    kind: Literal["constant", "uniform", "normal"] = "constant"
    low: float = 0.0
    high: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in INITIALIZER_KINDS:
            raise UsageError(
                f"Initializer.kind must be constant, uniform or normal but got {self.kind!r}"
            )
        if not all(abs(number) <= _MAX_FLOAT32 for number in (self.low, self.high)):
            raise UsageError(f"an initializer's numbers must be finite as float32 but got {self}")
        if self.kind == "uniform" and not self.low <= self.high:
            raise UsageError(f"a uniform initializer must have low <= high but got {self}")
        if self.kind == "normal" and self.high < 0:
            raise UsageError(f"a normal initializer's deviation must be >= 0 but got {self.high}")

    @classmethod
    def uniform(cls, bound: float) -> "Initializer":
        """Makes an initializer that is uniform in [-bound, bound)."""
        return cls(kind="uniform", low=-bound, high=bound)

    @classmethod
    def normal(cls, stddev: float) -> "Initializer":
        """Makes a normal initializer of mean 0."""
        return cls(kind="normal", high=stddev)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A table: each int64 id has its own row, created by the first training lookup.

    Attributes:
      name: unique among tables; initial values depend on it.
      dim: floats per embedding.
      optimizer: updates the rows.
      initializer: makes the values of new rows; uniform in +-1/sqrt(dim) if None.
      seed: of the initial values.
      capacity: the most rows; 0 means no limit. Further ids read as their initial value and do not
        learn.
    """

    name: str
    dim: int
    optimizer: Optimizer = dataclasses.field(default_factory=RowwiseAdagrad)
    initializer: Initializer | None = None
    seed: int = 0
    capacity: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError("a table's name must not be empty")
        if not 1 <= self.dim <= MAX_ROW_FILE_WIDTH:
            raise UsageError(
                f"table {self.name!r}: dim must be in [1, {MAX_ROW_FILE_WIDTH}] but got {self.dim}"
            )
        if not -(2**63) <= self.seed < 2**63:
            raise UsageError(
                f"table {self.name!r}: seed must be a signed 64-bit number but got {self.seed}"
            )
        if not 0 <= self.capacity < 2**63:
            raise UsageError(
                f"table {self.name!r}: capacity must be in [0, 2^63) but got {self.capacity}"
            )
        if self.initializer is None:
            object.__setattr__(self, "initializer", Initializer.uniform(self.dim**-0.5))

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that a checkpoint stores. A restore compares them."""
        return {
            "name": self.name,
            "dim": self.dim,
            "optimizer": {"kind": self.optimizer.kind, **self.optimizer.settings()},
            "initializer": dataclasses.asdict(self.initializer) if self.initializer else None,
            "seed": self.seed,
            "capacity": self.capacity,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """A column of ids and the table to look them up in. Features may share a table.

    Attributes:
      name: the column's name.
      table: the table, or the name of one.
      combiner: combines the rows of an example with several ids into one vector.
      ragged: whether an example has any number of ids (multi-hot) rather than one.
    """

    name: str
    table: str | TableSpec
    combiner: Combiner = "sum"
    ragged: bool = False

    def __post_init__(self) -> None:
        if self.combiner not in COMBINERS:
            raise UsageError(
                f"feature {self.name!r}: combiner must be sum, mean or sqrtn but got "
                f"{self.combiner!r}"
            )


def check(tables: Sequence[TableSpec], features: Sequence[FeatureSpec]) -> None:
    """Checks that names are unique and every feature's table is declared.

    Raises:
      UsageError: they are not.
    """
    names = [t.name for t in tables]
    for kind, given in (("table", names), ("feature", [f.name for f in features])):
        repeated = sorted({n for n in given if given.count(n) > 1})
        if repeated:
            raise UsageError(f"{kind} names must be unique but {repeated} are repeated")
    if not features:
        raise UsageError("a model with embedding tables must have at least one feature")
    for feature in features:
        if feature.table not in names:
            raise UsageError(
                f"feature {feature.name!r} looks up table {feature.table!r}, which is not among "
                f"the declared tables: {names}"
            )
