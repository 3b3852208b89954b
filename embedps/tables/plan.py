"""The stacking plan: which tables share a store, so that a step asks each shard once a group."""

import dataclasses
import re
from collections.abc import Sequence

from embedps.tables import specs
from embedps.tables.optimizers import Optimizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Tables of equal dim and optimizer, stacked in one store on each shard.

    Attributes:
      name: a folder's name in checkpoints, such as "dim16-rowwise_adagrad".
      tables: in declared order; a feature's table is an index into them.
      features: those that look up one of the tables, in declared order.
    """

    name: str
    dim: int
    optimizer: Optimizer
    tables: tuple[specs.TableSpec, ...]
    features: tuple[specs.FeatureSpec, ...]

    @property
    def stem(self) -> str:
        """The name without the number that tells groups of equal dim and optimizer kind apart."""
        return f"dim{self.dim}-{self.optimizer.kind}"

    @property
    def feature_tables(self) -> list[int]:
        """Each feature's table, as an index into `tables`."""
        index = {t.name: i for i, t in enumerate(self.tables)}
        return [index[f.table] for f in self.features]


def stem_of(group_name: str) -> str:
    """A group's stem from its name."""
    return re.sub(r"-\d+$", "", group_name)


def make_plan(
    tables: Sequence[specs.TableSpec], features: Sequence[specs.FeatureSpec]
) -> tuple[Group, ...]:
    """Stacks tables of equal dim and equal optimizer; a table that no feature uses is left out.

    Returns:
      The groups, in the order of their first tables.

    Raises:
      UsageError: names repeat, or a feature's table is not declared.
    """
    specs.check(tables, features)
    used = {f.table for f in features}
    stacks: dict[tuple[int, Optimizer], list[specs.TableSpec]] = {}
    for table in tables:
        if table.name in used:
            stacks.setdefault((table.dim, table.optimizer), []).append(table)
    groups: list[Group] = []
    for (dim, optimizer), stacked in stacks.items():
        stem = f"dim{dim}-{optimizer.kind}"
        same = sum(g.name == stem or g.name.startswith(stem + "-") for g in groups)
        names = {t.name for t in stacked}
        groups.append(
            Group(
                name=f"{stem}-{same + 1}" if same else stem,
                dim=dim,
                optimizer=optimizer,
                tables=tuple(stacked),
                features=tuple(f for f in features if f.table in names),
            )
        )
    return tuple(groups)
