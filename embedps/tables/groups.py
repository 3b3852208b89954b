"""Groups of tables that share one store per shard. A step sends one lookup per group and shard."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from embedps.tables import specs
from embedps.tables.optimizers import Optimizer
from embedps.tables.tiered import Tiered


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableGroup:
    """Tables of equal dim, optimizer, dtypes, freeze and memory: one store on each shard.

    Attributes:
      name: the name of its folder in checkpoints, such as "dim16-rowwise_adagrad".
      dim: floats per embedding.
      optimizer: updates the rows.
      row_dtype: of embeddings in memory.
      slot_dtype: of optimizer slots in memory.
      trainable: whether its rows ever change.
      frozen_steps: its rows do not change in the steps before this one.
      in_memory: whether none of its rows goes to disk.
      memory: its own, shared with groups that have an equal one.
      tables: in declared order. A feature's table is an index into them.
      features: those that look up one of the tables, in declared order.
    """

    name: str
    dim: int
    optimizer: Optimizer
    row_dtype: specs.RowDtype
    slot_dtype: specs.SlotDtype
    trainable: bool = True
    frozen_steps: int = 0
    in_memory: bool = False
    memory: Tiered | None = None
    tables: tuple[specs.TableSpec, ...]
    features: tuple[specs.FeatureSpec, ...]

    @property
    def gives_rates(self) -> bool:
        """Whether a lookup also gives how often rows are updated."""
        return any(feature.rate_as is not None for feature in self.features)

    @property
    def counted_tables(self) -> list[bool]:
        """Which tables' examples a training lookup counts; empty if none has an admission."""
        counted = [table.admission is not None for table in self.tables]
        return counted if self.trainable and any(counted) else []

    @property
    def stem(self) -> str:
        """The name without the number that distinguishes groups of equal dim and optimizer kind."""
        return _stem(self.dim, self.optimizer)

    @property
    def feature_tables(self) -> list[int]:
        """Each feature's table, as an index into `tables`."""
        return self.table_indexes(self.features)

    def table_indexes(self, features: Sequence[specs.FeatureSpec]) -> list[int]:
        """Returns each given feature's table, as an index into `tables`."""
        index = {t.name: i for i, t in enumerate(self.tables)}
        return [index[f.table_name] for f in features]


def _stem(dim: int, optimizer: Optimizer) -> str:
    return f"dim{dim}-{optimizer.kind}"


def stem_of(group_name: str) -> str:
    """Returns a group's stem from its name."""
    return re.sub(r"-\d+$", "", group_name)


def group_tables(
    tables: Sequence[specs.TableSpec], features: Sequence[specs.FeatureSpec]
) -> tuple[TableGroup, ...]:
    """Stacks tables of equal dim, optimizer, dtypes, freeze and memory; omits unused ones.

    Returns:
      The groups, in the order of their first tables.

    Raises:
      UsageError: as `specs.tables_of`.
    """
    tables = specs.tables_of(features, tables)
    used = {f.table_name for f in features}
    stacks: dict[tuple[Any, ...], list[specs.TableSpec]] = {}
    for table in tables:
        if table.name in used:
            dtypes = (table.row_dtype, table.slot_dtype)
            frozen = (table.trainable, table.frozen_steps)
            memory = (table.in_memory, table.memory)
            key = (table.embedding_dim, table.optimizer, *dtypes, *frozen, *memory)
            stacks.setdefault(key, []).append(table)
    groups: list[TableGroup] = []
    for stacked in stacks.values():
        first = stacked[0]
        stem = _stem(first.embedding_dim, first.optimizer)
        same = sum(g.stem == stem for g in groups)
        names = {t.name for t in stacked}
        groups.append(
            TableGroup(
                name=f"{stem}-{same + 1}" if same else stem,
                dim=first.embedding_dim,
                optimizer=first.optimizer,
                row_dtype=first.row_dtype,
                slot_dtype=first.slot_dtype,
                trainable=first.trainable,
                frozen_steps=first.frozen_steps,
                in_memory=first.in_memory,
                memory=first.memory,
                tables=tuple(stacked),
                features=tuple(f for f in features if f.table_name in names),
            )
        )
    return tuple(groups)
