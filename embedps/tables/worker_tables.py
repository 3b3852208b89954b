"""Tables whose shards are on workers of TF_CONFIG, one on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import tensorflow as tf

from embedps.checkpoint.format.quantize import FLOAT32, Encoding
from embedps.errors import UsageError
from embedps.tables.activations import Ids
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.lookup_result import LookupResult
from embedps.tables.padded_rows import add_group, flat_rows, pad, padded_length, width_of
from embedps.tables.policy_counts import AdmissionStats
from embedps.tables.row_files import RowFiles, ShardFile, StoredFile, WriteKind
from embedps.tables.table_scan import TableScan, merge_scans, scan_shard
from embedps.tables.table_stats import ShardStats
from embedps.tables.table_use import ShardUse

T = TypeVar("T")


class Workers(Protocol):
    """The workers, outside of steps; see cluster/worker_cluster.py."""

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Gives all workers' numbers, by rank; all must call it."""

    def show(self, values: tf.Tensor) -> tf.Tensor:
        """Gives all workers' values float32 [n] as [num workers, n]; all must call it."""

    def ask(self, stream: str, what: str, *args: Any, own: Callable[[], Any]) -> list[Any]:
        """Makes all workers do something, on the first; gives their answers, by rank."""


class WorkerTables(EmbeddingCollection):
    """The tables as a worker has them: with a shard for each worker, of which it fills its own.

    On the first worker, counts and files are those of all shards. `answer` is what another worker
    does for it.
    """

    def __init__(self, *args: Any, rank: int, workers: Workers, **kwargs: Any) -> None:
        """Creates empty stores; see `EmbeddingCollection`."""
        super().__init__(*args, **kwargs)
        self._rank = rank
        self._workers = workers
        self.files: RowFiles = _WorkerFiles(
            self.groups,
            self._stores,
            devices=self.devices,
            optimizer_slots=self.trainable,
            own=rank,
            workers=workers,
        )

    def answer(self, what: str, args: Sequence[Any]) -> Any:
        """Does this worker's part of what the first asks for."""
        if what == "write":
            kind, folder, since, encoding, max_pause_secs = args
            return RowFiles.write(
                self.files,
                kind,
                folder,
                since=since,
                encoding=encoding,
                max_pause_secs=max_pause_secs,
            )
        return self._own[what](self, *args)

    def lookup(
        self,
        ids: Mapping[str, Ids],
        *,
        insert: bool,
        step: tf.Tensor | None = None,
        partial: bool = False,
    ) -> LookupResult:
        """Reads the rows of a batch that all workers have alike; see `EmbeddingCollection.lookup`.

        Raises:
          UsageError: it would create rows. Workers that train ask each other for their own ids.
        """
        if insert:
            raise UsageError("workers in step create rows by the exchange of a step only")
        result = self.route(ids, partial=partial)
        lengths = [[tf.size(ids, tf.int64) for ids in each.shard_ids] for each in result.routed]
        padded = [padded_length(tf.stack(each)) if each else 0 for each in lengths]
        own = []
        for g, routed in enumerate(result.routed):
            if lengths[g]:
                found = self.lookup_shard(g, self._rank, routed.request(self._rank), insert=False)
                own.append(pad([flat_rows(found)], padded[g] * width_of(self, g))[0])
        shown = self._workers.show(tf.concat(own, 0))
        first = tf.zeros([], tf.int64)
        for g, of_group in enumerate(lengths):
            add_group(result, self, shown, first, of_group)
            first += padded[g] * width_of(self, g)
        return result

    def mark_clean(self) -> dict[tuple[str, int], int]:
        """Forgets which rows were touched; all workers call it, and each gets all cuts."""
        own = super().mark_clean()
        cuts = self._workers.gather([own[group.name, self._rank] for group in self.groups])
        return {
            (group.name, shard): of_shard[g]
            for shard, of_shard in enumerate(cuts)
            for g, group in enumerate(self.groups)
        }

    def shard_stats(self) -> list[ShardStats]:
        """Counts rows and memory of each shard."""
        return self._own_parts(self._ask("shard_stats"))

    def use(self) -> list[ShardUse]:
        """Counts what each shard's tables hold and what they are asked for."""
        return self._own_parts(self._ask("use"))

    def eviction_stats(self) -> dict[str, dict[str, int]]:
        """Counts rows that went over all shards, by table and cause."""
        found = self._ask("eviction_stats")
        return {
            name: {cause: sum(of[name][cause] for of in found) for cause in causes}
            for name, causes in found[0].items()
        }

    def admission_stats(self) -> dict[str, AdmissionStats]:
        """Counts, by table, what admission decided over all shards."""
        found = self._ask("admission_stats")
        return {
            name: AdmissionStats(*map(sum, zip(*(of[name] for of in found), strict=True)))
            for name in found[0]
        }

    def stop_copies(self) -> None:
        """Makes the copies that are being written fail."""
        self._ask("stop_copies")

    def hold_sweeps(self, held: bool) -> None:
        """Holds all workers' sweeps, or lets them go on where they were."""
        self._ask("hold_sweeps", held)

    def thaw(self, step: int) -> None:
        """Lets the sweeps of all workers' tables go on whose frozen steps are over."""
        if any(self._step < group.frozen_steps <= step for group in self.groups):
            self._ask("thaw", step)

    def set_oldest_steps(self, steps: Mapping[str, int]) -> None:
        """Sets, by table, the step before which rows are too old by their event time."""
        self._ask("set_oldest_steps", dict(steps))

    def make_scan(self) -> Callable[[], dict[str, TableScan]]:
        """Makes a function that walks over all rows of all workers."""
        return lambda: merge_scans(self.groups, self._ask("scan"))

    def _scan(self) -> list[list[Any]]:
        return scan_shard(self._stores, self._rank, self.devices[self._rank])

    def _ask(self, what: str, *args: Any) -> list[Any]:
        # A walk takes long: it must not delay what others ask for.
        stream = "scans" if what == "scan" else "tables"
        return self._workers.ask(stream, what, *args, own=lambda: self._own[what](self, *args))

    def _own_parts(self, found: Sequence[Sequence[T]]) -> list[T]:
        """Takes each worker's own shard; a worker that is not the first has only its own."""
        if len(found) == 1:
            return list(found[0])
        return [of[shard] for shard, of in enumerate(found)]

    _own: Mapping[str, Callable[..., Any]] = {
        "shard_stats": EmbeddingCollection.shard_stats,
        "use": EmbeddingCollection.use,
        "eviction_stats": EmbeddingCollection.eviction_stats,
        "admission_stats": EmbeddingCollection.admission_stats,
        "stop_copies": EmbeddingCollection.stop_copies,
        "hold_sweeps": EmbeddingCollection.hold_sweeps,
        "thaw": EmbeddingCollection.thaw,
        "set_oldest_steps": EmbeddingCollection.set_oldest_steps,
        "scan": _scan,
    }


class _WorkerFiles(RowFiles):
    """Writes on all workers, each its shard; loads on each worker its own."""

    def __init__(self, *args: Any, workers: Workers, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._workers = workers

    def write(
        self,
        kind: WriteKind,
        folder: str,
        *,
        since: Mapping[tuple[str, int], int],
        encoding: Encoding = FLOAT32,
        max_pause_secs: float = 0.0,
    ) -> list[ShardFile]:
        """Makes every worker write its file; see `RowFiles.write`."""
        written = self._workers.ask(
            "files",
            "write",
            kind,
            folder,
            dict(since),
            encoding,
            max_pause_secs,
            own=lambda: RowFiles.write(
                self,
                kind,
                folder,
                since=since,
                encoding=encoding,
                max_pause_secs=max_pause_secs,
            ),
        )
        files = [file for of_worker in written for file in of_worker]
        order = {group.name: g for g, group in enumerate(self._groups)}
        return sorted(files, key=lambda file: (order[file.group], file.shard))

    def load_cuts(
        self,
        cuts: Sequence[Mapping[str, Sequence[StoredFile]]],
        *,
        optimizer_slots: bool | None = None,
    ) -> int:
        """Loads this worker's part; returns how many records all workers loaded."""
        loaded = super().load_cuts(cuts, optimizer_slots=optimizer_slots)
        return _sum(self._workers.gather([loaded]))

    def load_admission(self, group_files: Mapping[str, Sequence[StoredFile]]) -> int:
        """Loads this worker's counters; see `load_cuts`."""
        return _sum(self._workers.gather([super().load_admission(group_files)]))

    def load_vectors(self, group_files: Mapping[str, Sequence[StoredFile]]) -> int:
        """Takes the vectors of this worker's ids; see `load_cuts`."""
        return _sum(self._workers.gather([super().load_vectors(group_files)]))


def _sum(counts: Sequence[Sequence[int]]) -> int:
    return sum(of[0] for of in counts)
