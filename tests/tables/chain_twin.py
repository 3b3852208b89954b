"""A plain-Python twin of a chain on the disk: what each save holds, and what tools make of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from embedps.checkpoint.format.manifest import SaveKind
from tests.tables.admission_twin import Counter
from tests.tables.stripe_twin import shard_of
from tests.tables.table_twin import FileRecords, Record

Fields = tuple[tuple[float, ...], tuple[float, ...], int, int]


@dataclasses.dataclass(frozen=True)
class TwinSave:
    """What the files of a save hold.

    Attributes:
      kind: base or delta.
      number: the save's number.
      num_shards: that wrote it.
      files: of each shard.
    """

    kind: SaveKind
    number: int
    num_shards: int
    files: list[FileRecords]


Chain = tuple[TwinSave, ...]


def rebased(chain: Chain, base: TwinSave | None) -> Chain:
    """The chain once a base that was written beside it is complete."""
    if base is None or base.number <= chain[0].number:
        return chain
    return (base, *(save for save in chain if save.number > base.number))


def last_records(records: Sequence[Record]) -> dict[int, Fields]:
    """The rows after records, in the order of each row's last record."""
    rows: dict[int, Fields | None] = {}
    for id_, fields in records:
        rows.pop(id_, None)
        rows[id_] = fields
    return {id_: fields for id_, fields in rows.items() if fields is not None}


def rows_by_file(chain: Chain) -> list[dict[int, Fields]]:
    """The rows that a tool finds in the files that it merges: by shard, if all saves have as many.

    Otherwise in all.
    """
    files = [[r for save in chain for file in save.files for r in file.rows]]
    if len({save.num_shards for save in chain}) == 1:
        files = [
            [r for save in chain for r in save.files[shard].rows]
            for shard in range(chain[0].num_shards)
        ]
    return [last_records(records) for records in files]


def all_counters(chain: Chain) -> dict[int, Counter | None]:
    """The last record of each counter."""
    counters: dict[int, Counter | None] = {}
    for save in chain:
        for file in save.files:
            counters.update(file.counters or {})
    return counters


def compacted(chain: Chain) -> TwinSave:
    """The base that a compaction makes of a chain."""
    counters = all_counters(chain)
    for id_ in [id_ for id_, counter in counters.items() if counter is None]:
        del counters[id_]
    of_files = rows_by_file(chain)
    counts = any(file.counters is not None for save in chain for file in save.files)
    return TwinSave(
        "base",
        chain[-1].number,
        len(of_files),
        [
            FileRecords(list(rows.items()), (counters if i == 0 else {}) if counts else None)
            for i, rows in enumerate(of_files)
        ],
    )


def evicted(chain: Chain, goes: Callable[[Fields], bool], number: int) -> TwinSave:
    """The delta with which a tool evicts rows."""
    gone = [sorted(i for i, f in rows.items() if goes(f)) for rows in rows_by_file(chain)]
    return TwinSave(
        "delta", number, len(gone), [FileRecords([(i, None) for i in ids], None) for ids in gone]
    )


def of_shard(table: str, records: Sequence[Record], shard: int, num_shards: int) -> list[Record]:
    """The records that a shard loads."""
    return [r for r in records if shard_of(table, r[0], num_shards) == shard]
