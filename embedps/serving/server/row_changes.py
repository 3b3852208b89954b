"""Which rows saves set and remove."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import SaveSet
from embedps.checkpoint.format.rows import RowFile, table_codes
from embedps.serving.server.item_index import Ids


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowChanges:
    """The ids of a table's rows that saves set, and of those that they removed: each id once."""

    set: Ids
    removed: Ids

    @property
    def ids(self) -> Ids:
        """The ids of both."""
        return np.concatenate([self.set, self.removed])


def read_changes(
    directory: CheckpointDirectory, saves: Sequence[SaveSet], tables: Collection[str]
) -> Mapping[str, RowChanges]:
    """Reads what saves change in some tables; the files must have been checked.

    Args:
      directory: of the checkpoints.
      saves: in order; the last record of an id counts.
      tables: by name.

    Raises:
      CorruptCheckpointError: a file cannot be read.
    """
    ids: dict[str, list[Ids]] = {name: [] for name in tables}
    removed: dict[str, list[np.ndarray]] = {name: [] for name in tables}
    for save in saves:
        for entry in save.files:
            file = RowFile(directory.file(entry), decoded=False)
            wanted = [(code, name) for code, name in enumerate(file.tables) if name in ids]
            for batch in file.batches() if wanted else ():
                codes, is_removed = table_codes(batch), _booleans(batch["removed"])
                for code, name in wanted:
                    rows = codes == code
                    ids[name].append(batch["id"].to_numpy()[rows])
                    removed[name].append(is_removed[rows])
    return {name: _last(ids[name], removed[name]) for name in tables}


def _booleans(column: object) -> np.ndarray:
    values: np.ndarray = column.to_numpy(zero_copy_only=False)  # type: ignore[attr-defined]
    return values


def _last(ids: Sequence[Ids], removed: Sequence[np.ndarray]) -> RowChanges:
    if not ids:
        return RowChanges(set=np.zeros(0, np.int64), removed=np.zeros(0, np.int64))
    # Of each id the last record: the first of those in reverse.
    found, first = np.unique(np.concatenate(ids)[::-1], return_index=True)
    is_removed = np.concatenate(removed)[::-1][first]
    return RowChanges(set=found[~is_removed], removed=found[is_removed])
