"""Checks that stored rows are of a model's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from embedps.errors import DimMismatchError
from embedps.tables.specs import TableSpec


def check_tables(
    stored: Sequence[Mapping[str, Any]],
    tables: Sequence[TableSpec],
    *,
    embedding_dim: int | None = None,
) -> None:
    """Checks that stored tables are these.

    Args:
      stored: what `TableSpec.to_json` gave.

    Raises:
      DimMismatchError: a table is absent on one side, or differs in dim, optimizer or `absent`.
    """
    found = {t["name"]: t for t in stored}
    ours: dict[str, TableSpec] = {t.name: t for t in tables}
    advice = (
        "restore with the tables it was written with, or start a new model directory with --from "
        "this one"
    )
    if found.keys() != ours.keys():
        raise DimMismatchError(
            f"the checkpoint has tables {sorted(found)}, the model {sorted(ours)}: {advice}"
        )
    for name, table in ours.items():
        theirs = found[name]
        if theirs["dim"] != table.embedding_dim:
            more = 0 if embedding_dim is None else table.embedding_dim - embedding_dim
            more = more if 0 < more < theirs["dim"] else 0
            raise DimMismatchError(
                f"table {name!r} has embedding_dim {table.embedding_dim - more}, the checkpoint "
                f"has {theirs['dim'] - more}: {advice}"
            )
        absent = theirs.get("absent", "zeros")
        if absent != table.absent:
            raise DimMismatchError(
                f"table {name!r} has absent={table.absent!r}, the checkpoint has {absent!r}, and "
                f"scores would change: {advice}"
            )
        kind = theirs["optimizer"]["kind"]
        if kind != table.optimizer.kind:
            raise DimMismatchError(
                f"table {name!r} has optimizer {table.optimizer.kind}, the checkpoint has {kind}: "
                f"{advice}"
            )
