"""Options of a model's tables: a model whose `Config` extends `TableOptions` has their flags."""

from __future__ import annotations

import dataclasses

from embedps.config_fields import MAX_INT64, check, option
from embedps.constants import MAX_MIN_COUNT, MAX_ROW_FILE_WIDTH
from embedps.errors import UsageError
from embedps.tables.admission import Admission, Chance, MinCount
from embedps.tables.eviction import EvictionPolicy, MinNorm, Order, SizeLimit, TimeToLive
from embedps.tables.optimizers import BY_KIND, Optimizer
from embedps.tables.optimizers import make as make_optimizer
from embedps.tables.specs import Initializer, RowDtype, SlotDtype, TableSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmissionOptions:
    """The options that say which ids of a model's tables get a row; each holds for every table."""

    min_count: int = option(
        1,
        "an id gets a row by so many examples that show it; until then it reads as zeros",
        least=1,
        most=MAX_MIN_COUNT,
    )
    min_count_expire_steps: int = option(
        0,
        "an id without a row is counted anew if no example has shown it for this many steps; "
        "0: counts stay",
        least=0,
        most=2**32 - 1,
    )
    admit_probability: float = option(
        1.0,
        "instead, each example that shows an id gives it a row with this probability",
        least=2**-32,
        most=1,
    )

    def admission(self) -> Admission | None:
        """Makes the tables' policy of admission.

        Raises:
          UsageError: two are given, or counters that there are not expire.
        """
        if self.min_count > 1 and self.admit_probability < 1:
            raise UsageError(
                "a table admits ids by min_count or by admit_probability, but got "
                f"{self.min_count} and {self.admit_probability}: leave one out"
            )
        if self.min_count > 1:
            return MinCount(count=self.min_count, expire_steps=self.min_count_expire_steps)
        if self.min_count_expire_steps:
            raise UsageError(
                "min_count_expire_steps is of the counters of min_count, which must be above 1 but "
                f"is {self.min_count}"
            )
        return Chance(probability=self.admit_probability) if self.admit_probability < 1 else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvictionOptions:
    """The options that say which rows of a model's tables go; each holds for every table."""

    row_ttl_steps: int = option(
        0, "a row goes this many steps after its last update; 0: never", least=0, most=2**32 - 1
    )
    row_ttl_hours: int = option(
        0,
        "a row goes when the dataset's timestamps have advanced by this since its last update; "
        "0: never",
        least=0,
        most=10**6,
    )
    max_table_rows: int = option(
        0,
        "at this many rows of a table, new ones displace others; 0: no limit",
        least=0,
        most=MAX_INT64,
    )
    max_table_bytes: int = option(
        0,
        "at this many bytes of a table, new rows displace others; at least 73,728 and 1,024 rows "
        "of it per parameter server; 0: no limit",
        least=0,
        most=MAX_INT64,
    )
    eviction_order: Order = option(
        "least_recent",
        "which rows are displaced at a limit: the least recently or least frequently updated",
    )
    min_row_norm: float = option(
        0.0, "a row goes when an update leaves its L2 norm below this; 0: never", least=0, most=1e30
    )

    def eviction(self) -> tuple[EvictionPolicy, ...]:
        """Makes the tables' policies of eviction."""
        policies: list[EvictionPolicy] = []
        if self.row_ttl_steps or self.row_ttl_hours:
            policies.append(
                TimeToLive(steps=self.row_ttl_steps, event_secs=3600 * self.row_ttl_hours)
            )
        if self.max_table_rows or self.max_table_bytes:
            policies.append(
                SizeLimit(
                    max_rows=self.max_table_rows,
                    max_bytes=self.max_table_bytes,
                    order=self.eviction_order,
                )
            )
        if self.min_row_norm:
            policies.append(MinNorm(norm=self.min_row_norm))
        return tuple(policies)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyOptions(AdmissionOptions, EvictionOptions):
    """The options that say which rows a model's tables have."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions(PolicyOptions):
    """The options of a model's tables."""

    embedding_dim: int = option(16, "floats per embedding", least=1, most=MAX_ROW_FILE_WIDTH)
    sparse_optimizer: str = option(
        "rowwise_adagrad", "optimizer of the tables' rows", choices=tuple(BY_KIND)
    )
    row_weight_decay: float = option(
        0.0,
        "a step takes this share of the rows that it updates, times their learning rate",
        least=0,
        most=1e30,
    )
    row_dtype: RowDtype = option(
        "float32", "dtype of embeddings in memory; updates round at random if it is not float32"
    )
    slot_dtype: SlotDtype = option("float32", "dtype of the tables' optimizer slots in memory")

    def __post_init__(self) -> None:
        check(self)
        self.optimizer()
        self.admission()

    def table(
        self,
        name: str,
        *,
        embedding_dim: int | None = None,
        initializer: Initializer | None = None,
    ) -> TableSpec:
        """Declares a table with these options."""
        return TableSpec(
            name=name,
            embedding_dim=self.embedding_dim if embedding_dim is None else embedding_dim,
            optimizer=self.optimizer(),
            initializer=initializer,
            admission=self.admission(),
            eviction=self.eviction(),
            row_dtype=self.row_dtype,
            slot_dtype=self.slot_dtype,
        )

    def counts(self, name: str) -> TableSpec:
        """Declares a table whose rows do not change: only their updates are counted.

        Its rows live as long as those of the other tables, but no norm evicts them.
        """
        policies = tuple(p for p in self.eviction() if not isinstance(p, MinNorm))
        return TableSpec(
            name=name,
            embedding_dim=1,
            optimizer=make_optimizer("sgd"),
            initializer=Initializer(),
            eviction=policies,
        )

    def optimizer(self) -> Optimizer:
        """Makes the tables' optimizer."""
        return make_optimizer(self.sparse_optimizer, weight_decay=self.row_weight_decay)
