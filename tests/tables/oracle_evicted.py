"""The files of evicted rows of a trace, each compared with what its twin lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.evicted_directory import EvictedDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.tables import TableSpec
from tests.tables.chain_twin import Chain, TwinSave, rows_by_file
from tests.tables.oracle_store import GROUP, Store, read_evicted
from tests.tables.table_twin import TableTwin, TwinEvicted


class EvictedFiles:
    """A directory of evicted rows, as a run writes it."""

    def __init__(self, folder: Path, directory: CheckpointDirectory) -> None:
        self.path = folder / "evicted"
        self._files = EvictedDirectory(self.path)
        self._files.claim(directory.path)

    def begin(
        self, stores: Sequence[Store], twins: Sequence[TableTwin], newest: Manifest | None
    ) -> None:
        """Keeps what goes from now on; files of saves that were not committed go."""
        saved = 0 if newest is None else newest.save_number
        self._files.remove_after(saved)
        assert all(number <= saved for number in self._numbers())
        self._shards = list(zip(stores, twins, strict=True))
        for _, twin in self._shards:
            twin.gone.clear()
        self._paths = self._next(saved + 1)

    def finish(self, spec: TableSpec, number: int) -> int:
        """Finishes the files of what went before a save; returns the rows that went."""
        done = self._paths
        self._paths = self._next(number + 1)
        total = 0
        for path, (_, twin) in zip(done, self._shards, strict=True):
            gone, twin.gone = twin.gone, []
            assert (read_evicted(path, spec) if path.exists() else []) == gone
            total += len(gone)
        return total

    def check_tool(self, spec: TableSpec, chain: Chain, delta: TwinSave, *, step: int) -> None:
        """Checks the files of the rows that a tool's delta removes from a chain."""
        for s, rows in enumerate(rows_by_file(chain)):
            path = self._files.shard_path(delta.number, GROUP, s, delta.num_shards)
            ids = [id_ for id_, _ in delta.files[s].rows]
            expected = [
                TwinEvicted(i, "hand", max(step - 1, 0), last_step, frequency, w, slots)
                for i in ids
                for w, slots, last_step, frequency in [rows[i]]
            ]
            found = read_evicted(path, spec) if path.exists() else []
            assert sorted(found, key=lambda row: row.id) == expected

    def _next(self, number: int) -> list[Path]:
        n = len(self._shards)
        paths = [self._files.shard_path(number, GROUP, s, n) for s in range(n)]
        for path, (store, _) in zip(paths, self._shards, strict=True):
            store.next_evicted_file(path)
        return paths

    def _numbers(self) -> list[int]:
        folders = (self.path / GROUP).glob("save=*")
        return [int(folder.name.removeprefix("save=")) for folder in folders]
