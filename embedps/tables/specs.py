"""The declarations of a model: tables of rows, and the features that look them up."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from embedps.config_fields import check_text, check_types, shown
from embedps.constants import MAX_ROW_FILE_WIDTH
from embedps.errors import UsageError
from embedps.tables import admission as admission_policies
from embedps.tables import eviction as eviction_policies
from embedps.tables import optimizers
from embedps.tables.admission import Admission
from embedps.tables.eviction import EvictionPolicy, TimeToLive
from embedps.tables.keras_optimizers import twin_of
from embedps.tables.optimizers import Optimizer, RowwiseAdagrad
from embedps.tables.stored_names import from_stored, to_stored
from embedps.tables.tiered import Tiered

Combiner = Literal["sum", "mean", "sqrtn", "none"]
InitializerKind = Literal["constant", "uniform", "normal", "function"]
Absent = Literal["zeros", "initial"]
RowDtype = Literal["float32", "bfloat16", "float16"]
SlotDtype = Literal["float32", "bfloat16"]
_MAX_FLOAT32 = 3.4028234e38
_MAX_LENGTH = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Initializer:
    """Initial values of rows: a pure function of (seed, table name, id), so equal on any shard.

    Attributes:
      kind: "constant" (`low`), "uniform" in [low, high), "normal" of mean `low` and standard
        deviation `high`, or "function".
      function: "module:function", which takes ids int64 [n] and returns float32 [n, dim]: always
        the same for an id. Whoever holds rows calls it, so servers must be able to import its
        module, which must not import TensorFlow: they have only a part of it.
    """

    kind: InitializerKind = "constant"
    low: float = 0.0
    high: float = 0.0
    function: str | None = None

    def __post_init__(self) -> None:
        check_types(self, "Initializer.")
        named = self.function and re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", self.function)
        if (self.kind == "function", self.function) != (bool(named), named and named[0]):
            raise UsageError(
                "an initializer of kind 'function', and no other, must name one as "
                f"'module:function' but got kind {self.kind!r} and function {self.function!r}"
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

    @classmethod
    def computed(cls, function: str) -> "Initializer":
        """Makes an initializer that calls `function`, such as "shop.vectors:of_items"."""
        return cls(kind="function", function=function)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that a checkpoint stores."""
        fields = dataclasses.asdict(self)
        if self.function is None:  # earlier checkpoints do not have it
            del fields["function"]
        return fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A table: each int64 id has its own row, created by its first training step.

    Attributes:
      name: unique among tables; initial values depend on it.
      embedding_dim: floats per embedding.
      optimizer: updates the rows; one of embedps, or SGD, Adagrad or Ftrl of Keras.
      initializer: makes the values of new rows; if None, uniform in +-1/sqrt(embedding_dim).
      seed: of the initial values.
      capacity: the most rows; 0 means no limit. Further ids get no row and do not learn.
      absent: what an id without a row reads as, in training and in scoring: "zeros", or "initial",
        the value with which its row would start.
      admission: which ids get a row, `MinCount(count=3)` or `Chance(probability=0.1)`; None gives
        one to every id. The gradient of an id without a row is dropped.
      eviction: which rows go; a row goes if one of the policies says so. An id that returns starts
        anew.
      row_dtype: of embeddings in memory. A lookup gives float32 in any case. An update computes in
        float32 and rounds at random, so that the expected value is the exact one; the random bits
        are a function of (seed, table name, id, step). A value beyond float16's greatest, 65504,
        becomes that.
      slot_dtype: of optimizer slots in memory; they round in the same way.
      trainable: False leaves the rows as they are: training makes, updates, counts and evicts none.
      frozen_steps: the same in the steps before this one.
      in_memory: True keeps the rows in memory where the coldest of others go to disk (`Tiered`,
        `--max-memory-bytes`), whose limit does not count them.
      memory: `Tiered(max_memory_bytes=10**9, directory="/ssd")` sends the coldest rows to a disk,
        whatever memory other tables have. Tables with an equal one share it on each server.
    """

    name: str
    embedding_dim: int
    optimizer: Optimizer = dataclasses.field(default_factory=RowwiseAdagrad)
    initializer: Initializer | None = None
    seed: int = 0
    capacity: int = 0
    absent: Absent = "zeros"
    admission: Admission | None = None
    eviction: tuple[EvictionPolicy, ...] = ()
    row_dtype: RowDtype = "float32"
    slot_dtype: SlotDtype = "float32"
    trainable: bool = True
    frozen_steps: int = 0
    in_memory: bool = False
    memory: Tiered | None = None

    def __post_init__(self) -> None:
        check_text("a table's name", self.name)
        check_types(self, f"table {self.name!r}: ")
        if not isinstance(self.optimizer, Optimizer):
            try:
                object.__setattr__(self, "optimizer", twin_of(self.optimizer))
            except UsageError as error:
                raise UsageError(f"table {self.name!r}: {error}") from None
        if not isinstance(self.initializer, Initializer | None):
            raise UsageError(
                f"table {self.name!r}: initializer must be None or an embedps.Initializer, such as "
                f"Initializer.uniform(0.05), but got {shown(self.initializer)}"
            )
        if self.initializer is not None and self.initializer.function and self.absent != "zeros":
            raise UsageError(
                f"table {self.name!r}: absent must be 'zeros' with an initializer that calls a "
                f"function, which readers and exports cannot, but got {self.absent!r}"
            )
        if not 1 <= self.embedding_dim <= MAX_ROW_FILE_WIDTH:
            raise UsageError(
                f"table {self.name!r}: embedding_dim must be in [1, {MAX_ROW_FILE_WIDTH}] "
                f"but got {self.embedding_dim}"
            )
        if not -(2**63) <= self.seed < 2**63:
            raise UsageError(
                f"table {self.name!r}: seed must be a signed 64-bit number but got {self.seed}"
            )
        if not 0 <= self.capacity < 2**63:
            raise UsageError(
                f"table {self.name!r}: capacity must be in [0, 2^63) but got {self.capacity}"
            )
        if not 0 <= self.frozen_steps < 2**32:
            raise UsageError(
                f"table {self.name!r}: frozen_steps must be in [0, 2^32) but got "
                f"{self.frozen_steps}"
            )
        if self.admission is not None and not isinstance(self.admission, Admission):
            raise UsageError(
                f"table {self.name!r}: admission must be "
                f"{', '.join(cls.__name__ for cls in admission_policies.BY_KIND.values())} or None "
                f"but got {self.admission!r:.60}"
            )
        if not isinstance(self.memory, Tiered | None) or (self.memory and self.in_memory):
            raise UsageError(
                f"table {self.name!r}: memory must be None, or an embedps.Tiered without "
                f"in_memory, but got {self.memory!r:.80} and in_memory={self.in_memory}"
            )
        if not isinstance(self.eviction, list | tuple):
            raise UsageError(
                f"table {self.name!r}: eviction must be a tuple of policies but got "
                f"{self.eviction!r:.60}: write ({self.eviction!r:.60},)"
            )
        object.__setattr__(self, "eviction", tuple(self.eviction))
        eviction_policies.check(self.name, self.eviction, capacity=self.capacity)
        if self.initializer is None:
            object.__setattr__(self, "initializer", Initializer.uniform(self.embedding_dim**-0.5))

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that a checkpoint stores. A restore compares them."""
        settings = self.optimizer.settings()
        for name in ("weight_decay", "lazy_decay"):  # earlier checkpoints do not have them
            if not settings[name]:
                del settings[name]
        fields: dict[str, Any] = {
            "name": self.name,
            "embedding_dim": self.embedding_dim,
            "optimizer": {"kind": self.optimizer.kind, **settings},
            "initializer": self.initializer.to_json() if self.initializer else None,
            "seed": self.seed,
            "capacity": self.capacity,
        }
        # Earlier checkpoints do not have these.
        if self.absent != "zeros":
            fields["absent"] = self.absent
        if self.admission is not None:
            fields["admission"] = self.admission.to_json()
        if self.eviction:  # earlier checkpoints do not have it
            fields["eviction"] = [policy.to_json() for policy in self.eviction]
        dtypes = {"row_dtype": self.row_dtype, "slot_dtype": self.slot_dtype}
        fields |= {field: dtype for field, dtype in dtypes.items() if dtype != "float32"}
        return to_stored(fields)

    def get_config(self) -> dict[str, Any]:
        """Gives what `from_config` takes, as JSON has it."""
        names = [f.name for f in dataclasses.fields(self.optimizer)]
        optimizer = {n: getattr(self.optimizer, n) for n in names} | {"kind": self.optimizer.kind}
        optimizer["learning_rate"] = optimizers.rate_config(self.optimizer.learning_rate)
        here = {n: getattr(self, n) for n in ("trainable", "frozen_steps", "in_memory")}
        here["memory"] = None if self.memory is None else dataclasses.asdict(self.memory)
        return from_stored(self.to_json()) | {"optimizer": optimizer} | here

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "TableSpec":
        """Makes the table of which `get_config`, or `to_json`, gave this."""
        fields = from_stored(config)
        optimizer = from_stored(config["optimizer"])
        rate = optimizers.rate_of(optimizer.get("learning_rate"))
        fields["optimizer"] = optimizers.make(**optimizer | {"learning_rate": rate})
        if config["initializer"] is not None:
            fields["initializer"] = Initializer(**config["initializer"])
        if "admission" in config:
            fields["admission"] = _made(admission_policies.BY_KIND, config["admission"])
        if config.get("memory") is not None:
            fields["memory"] = Tiered(**config["memory"])
        policies = (_made(eviction_policies.BY_NAME, p) for p in config.get("eviction", ()))
        return cls(**fields | {"eviction": tuple(policies)})


def _made(kinds: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    return kinds[config["kind"]](**{k: v for k, v in config.items() if k != "kind"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """A column of ids and the table to look them up in. Features may share a table.

    Attributes:
      name: the column's name.
      table: the table, or the name of a declared one.
      combiner: combines the rows of an example with several ids into one vector; "none" keeps a
        row per id, in the order of the ids.
      ragged: whether an example has any number of ids (multi-hot, or a sequence) rather than one.
      max_length: with combiner "none", makes every example this long: keeps the last ids, which
        are the most recent of a history, and puts zeros after them. None keeps all ids.
      rate_as: a name under which the lookup also gives, for each id, the share of training steps
        that update its row; `in_batch_softmax_loss` corrects for it.
    """

    name: str
    table: TableSpec | str
    combiner: Combiner = "mean"
    ragged: bool = False
    max_length: int | None = None
    rate_as: str | None = None

    def __post_init__(self) -> None:
        check_text("a feature's name", self.name)
        check_types(self, f"feature {self.name!r}: ")
        if not isinstance(self.table, TableSpec):
            check_text(f"feature {self.name!r}: table, a TableSpec or the name of one,", self.table)
        if self.rate_as is not None and self.ragged and not self.keeps_rows:
            raise UsageError(
                f"feature {self.name!r}: rate_as of a ragged feature must go with combiner='none' "
                f"but got combiner={self.combiner!r}"
            )
        if self.max_length is None:
            return
        if not self.keeps_rows:
            raise UsageError(
                f"feature {self.name!r}: max_length must go with ragged=True and combiner='none' "
                f"but got ragged={self.ragged} and combiner={self.combiner!r}"
            )
        if not 1 <= self.max_length <= _MAX_LENGTH:
            raise UsageError(
                f"feature {self.name!r}: max_length must be in [1, {_MAX_LENGTH}] but got "
                f"{self.max_length}"
            )

    @property
    def table_name(self) -> str:
        """The name of the table."""
        return self.table if isinstance(self.table, str) else self.table.name

    @property
    def keeps_rows(self) -> bool:
        """Whether an example's activation is a row per id, not one vector."""
        return self.ragged and self.combiner == "none"

    def get_config(self) -> dict[str, Any]:
        """Gives what `from_config` takes, as JSON has it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        table = self.table if isinstance(self.table, str) else self.table.get_config()
        return fields | {"table": table}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "FeatureSpec":
        """Makes the feature of which `get_config` gave this."""
        table = config["table"]
        made = table if isinstance(table, str) else TableSpec.from_config(table)
        return cls(**{**config, "table": made})


def event_secs_of(tables: Sequence[TableSpec]) -> dict[str, int]:
    """Returns the times to live in event time, by table that has one."""
    ages = ((t.name, eviction_policies.find(t.eviction, TimeToLive)) for t in tables)
    return {name: age.event_secs for name, age in ages if age is not None and age.event_secs}


def learning_rate_of(tables: Sequence[TableSpec]) -> float | None:
    """Returns the learning rate that all tables' optimizers bring; None if it is not one number."""
    rates = {t.optimizer.learning_rate for t in tables}
    rate = rates.pop() if len(rates) == 1 else None
    return None if callable(rate) else rate


def brings_schedule(tables: Sequence[TableSpec]) -> bool:
    """Tells whether a table brings a schedule of its learning rate."""
    return any(callable(t.optimizer.learning_rate) for t in tables)


def tables_of(
    features: Sequence[FeatureSpec], tables: Sequence[TableSpec] = ()
) -> tuple[TableSpec, ...]:
    """Collects the tables: the declared ones, then those that features bring along, in order.

    Raises:
      UsageError: two tables of one name differ, names are repeated, a feature's table is not
        declared, or one is no FeatureSpec or TableSpec.
    """
    for what, kind, given in (
        ("features", FeatureSpec, features),
        ("tables", TableSpec, tables),
    ):
        for each in given:
            if not isinstance(each, kind):
                raise UsageError(
                    f"each of the {what} must be an embedps.{kind.__name__} but got {shown(each)}"
                )
    inline: list[TableSpec] = []
    by_name = {t.name: t for t in tables}
    for feature in features:
        table = feature.table
        if isinstance(table, str):
            continue
        known = by_name.get(table.name)
        if known is None:
            by_name[table.name] = table
            inline.append(table)
            continue
        fields = [f.name for f in dataclasses.fields(TableSpec)]
        differing = [f for f in fields if getattr(table, f) != getattr(known, f)]
        if differing:
            theirs, ours = (
                ", ".join(f"{f}={getattr(t, f)}" for f in differing) for t in (known, table)
            )
            raise UsageError(
                f"feature {feature.name!r} declares table {table.name!r} with {ours}, but another "
                f"declaration has {theirs}: make them equal, or give one table another name"
            )
    check([*tables, *inline], features)
    return (*tables, *inline)


def check(tables: Sequence[TableSpec], features: Sequence[FeatureSpec]) -> None:
    """Checks that names are unique and every feature's table is declared.

    Raises:
      UsageError: they are not.
    """
    names = [t.name for t in tables]
    outputs = [name for f in features for name in (f.name, f.rate_as) if name is not None]
    for kind, given in (("table", names), ("feature", outputs)):
        repeated = sorted({n for n in given if given.count(n) > 1})
        if repeated:
            raise UsageError(f"{kind} names must be unique but {repeated} are repeated")
    if not features:
        raise UsageError("a model with embedding tables must have at least one feature")
    for feature in features:
        if feature.table_name not in names:
            raise UsageError(
                f"feature {feature.name!r} looks up table {feature.table_name!r}, which is not "
                f"among the declared tables: {names}"
            )
