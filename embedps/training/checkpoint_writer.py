"""Writes a run's tables and network as checkpoints, and restores them."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embedps.checkpoint.chain import (
    Position,
    continuation,
    extend,
    position_of,
    rebase,
    replace_start,
    split_head,
)
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.follow import Advance
from embedps.checkpoint.format.dense import write_dense
from embedps.checkpoint.format.manifest import FileEntry, Manifest, SaveKind, SaveSet
from embedps.checkpoint.format.quantize import FLOAT32, Encoding
from embedps.checkpoint.policies import Consecutive, RebasePolicy
from embedps.checkpoint.retention import DEFAULT_KEEP, KeepPolicy, collect_garbage
from embedps.engine.checkpoint_restore import (
    check_tables,
    describe_tables,
    load_admission,
    load_dense,
    load_rows,
    load_shard,
    load_vectors,
)
from embedps.errors import (
    CheckpointError,
    DirectoryTakenError,
    TrainingError,
)
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.row_files import ShardFile, WriteKind
from embedps.training.evicted_rows import EvictedRowsWriter
from embedps.training.leftover_saves import LeftoverSaves
from embedps.training.new_base import NewBase

# Of the time from one save to the next, what its writers may rest while training needs the cores.
REST_SHARE = 0.25
_BASE_RESTS = 16  # a base's writers may rest for so much longer than a delta's


class CheckpointWriter:
    """Writes a run's checkpoints: first a base, then deltas, and new bases by a policy.

    A new base is written in the background while deltas go on. When it is complete, the commit of
    the next delta starts the chain with it. The base holds each row as of some moment during its
    writing. So the chain keeps the deltas since the base began, and readers of the old chain go on
    by these deltas.

    The deltas come first: if a new base fails or does not fit on the disk, its files are removed,
    the deltas go on, and a new base is tried some saves later.

    Not thread-safe: only one save at a time.

    Attributes:
      last: the last manifest that this run committed or restored.
      new_base: the one that is being written, if there is one.
    """

    def __init__(
        self,
        directory: CheckpointDirectory,
        collection: EmbeddingCollection,
        variables: Mapping[str, tf.Variable],
        *,
        model: Mapping[str, Any] | None = None,
        rebase: RebasePolicy | None = None,
        keep: Sequence[KeepPolicy] = DEFAULT_KEEP,
        encoding: Encoding = FLOAT32,
        evicted: EvictedRowsWriter | None = None,
        must_be_finite: Collection[str] = (),
        is_successor: bool = False,
    ) -> None:
        """Prepares to write to a directory that no other run writes to; compactions may.

        Args:
          directory: of the checkpoints; on a cluster, the parameter servers must see it.
          variables: of the network and its optimizer, by name; a rerun must give the same ones.
          model: the model's signature, which the manifests store.
          rebase: when a new base is written; `Consecutive()` if not given.
          keep: which older checkpoints stay, besides those under a lease.
          encoding: of the rows' floats in the files.
          evicted: keeps the rows that go; its files of a save are finished before the commit.
          must_be_finite: names of variables without which no save is committed if they are not.
          is_successor: another writer of this run writes until this one restores what it wrote.
        """
        self._is_successor = is_successor
        self._evicted = evicted
        self._must_be_finite = tuple(must_be_finite)
        self._directory = directory
        self._collection = collection
        self._variables = dict(variables)
        self._model = dict(model or {})
        self._rebase = rebase or Consecutive()
        self._keep = tuple(keep)
        self._encoding = encoding
        collection.files.prepare_writes(encoding)
        self._vectors: tuple[FileEntry, ...] = ()
        self.last: Manifest | None = None
        self._history = secrets.token_hex(8)
        self._restarts = False
        # The next delta holds what changed since these cuts, which are those of save `_since`.
        self._cuts: dict[tuple[str, int], int] = {}
        self._since = -1
        self._before = self._cuts, self._since  # of the save before that
        self._delta_bytes: list[int] = []  # of those since the base
        # The manifest whose commit failed last, and what is to be done if it is in place.
        self._tried: tuple[Manifest, Callable[[], None]] | None = None
        self._ahead: Position | None = None  # whose rows the tables have before `restore`
        self._highest = -1  # number that a save here had, committed or not
        self._leftovers = LeftoverSaves(directory)
        self._failed_collections = 0  # in a row
        self._news: list[str] = []
        self.new_base = NewBase(self._leftovers, self._collection.stop_copies, self._news.append)
        self.counts = {
            kind: {"count": 0, "bytes": 0, "rows": 0, "secs": 0.0} for kind in ("base", "delta")
        }
        if not is_successor:
            self._leftovers.remove_uncommitted()

    def load_ahead(self, advance: Advance) -> None:
        """Loads rows that this run's writer before this one committed; `restore` loads the rest."""
        self._ahead = None
        if advance.reset:
            self._collection.clear()
        load_rows(self._collection, self._directory, advance.saves)
        self._ahead = position_of(advance.manifest)

    def restore(self, manifest: Manifest) -> int:
        """Restores a checkpoint that any number of shards wrote; returns how many records it read.

        Raises:
          DimMismatchError: it is of other tables or another network.
          CorruptCheckpointError: a file is missing or differs from its checksum.
        """
        self._leftovers.remove_uncommitted()
        check_tables(manifest, self._collection.tables)
        self._directory.check_present(manifest)
        if manifest.dense is not None:
            load_dense(self._directory, manifest, self._variables, whole=True)
        rest = continuation(manifest, self._ahead)
        if rest is None and self._is_successor:
            self._collection.clear()
        saves = manifest.chain if rest is None else rest
        records = load_rows(self._collection, self._directory, saves)
        self._cuts = self._collection.mark_clean()
        load_admission(self._collection, self._directory, manifest.chain)
        self.keep_vectors(manifest.vectors)
        self._since = manifest.save_number
        self._delta_bytes = [save.bytes for save in split_head(manifest.chain)[1]]
        if manifest.history and not self._directory.was_continued(manifest):
            self._history = manifest.history
        self.last = manifest
        return records

    def keep_vectors(self, vectors: tuple[FileEntry, ...]) -> None:
        """Has new rows begin with vectors of files, which each manifest lists from now on.

        Raises:
          CorruptCheckpointError: a file is absent, or not what was written.
        """
        load_vectors(self._collection, self._directory, vectors)
        self._vectors = vectors

    def restore_shards(self, shards: Sequence[int]) -> Manifest | None:
        """Loads what the last commit has of shards whose stores were made anew; others stay.

        Returns:
          The commit; None, and nothing is loaded, if there is none to go on from.

        Raises:
          CorruptCheckpointError: a file is missing or differs from its checksum.
        """
        self.new_base.give_up()
        self._take_tried()
        if self.last is None or self._rebase.cumulative or self._restarts:
            return None
        chain = self._chain()
        for shard in shards:
            self._cuts |= load_shard(self._collection, self._directory, chain, self._vectors, shard)
        return self.last

    def save(
        self,
        *,
        step: int,
        ledger: Mapping[str, Any],
        partially_applied: Callable[[], Mapping[str, Any]],
        progress: Mapping[str, Any],
        final: bool,
        rest_secs: float = 0.0,
    ) -> Manifest:
        """Writes and commits a checkpoint while training goes on.

        Args:
          step: training steps done.
          ledger: its state, read before this call: the tables have every unit it lists as done.
          partially_applied: called once the tables are cut; it returns the ledger's state of units
            that may be partially applied. A rerun visits and counts these again.
          final: no checkpoint follows.
          rest_secs: how long in all the shards' writers may rest while training needs the cores
            (`RowFiles.write`); 0 writes at full speed.

        Raises:
          CheckpointError: the changes could not be written. Earlier commits stay, the files of
            this save are removed, and the next save has its changes.
          DirectoryTakenError: another run commits here.
          TrainingError: a variable is not finite that must be. Nothing was committed.
        """
        self._leftovers.remove()
        attempt = functools.partial(
            self._attempt,
            step=step,
            ledger=ledger,
            partially_applied=partially_applied,
            progress=progress,
            final=final,
            rest_secs=rest_secs,
        )
        base = self.new_base.take()
        due = self._is_base_due()
        try:
            manifest = attempt(base)
        except CheckpointError as error:
            has_base = base is not None or self.new_base.name is not None
            if isinstance(error, DirectoryTakenError) or not has_base:
                raise
            # What changed may fit where that base was.
            self.new_base.give_up()
            self.new_base.failed(error)
            manifest = attempt(None)
        if due or not final:
            self._begin_base_if_due(step, rest_secs)
        if final and self.new_base.name is not None:
            # So that who has not read what was committed just now goes on by the base's delta.
            self._cuts, self._since = self._before
            manifest = self._rebase_last(attempt) or manifest
        return manifest

    def restart(self) -> None:
        """Makes the next save a base of a new history: all rows were replaced, as no delta says."""
        self.new_base.give_up()
        self._restarts = True

    def news(self) -> list[str]:
        """Gives the lines to show since the last call: why a new base failed, and the like."""
        news = self._news.copy()
        self._news.clear()
        return news + (self._evicted.news() if self._evicted is not None else [])

    @property
    def evicted_counts(self) -> dict[str, int] | None:
        """Counts of the evicted rows that this run wrote, if it keeps them."""
        return dict(self._evicted.counts) if self._evicted is not None else None

    def close(self) -> None:
        """Stops the writing of a new base; what was committed stays."""
        self.new_base.give_up()

    def _rebase_last(self, attempt: Callable[[SaveSet], Manifest]) -> Manifest | None:
        """Commits the new base after the run's last save; gives None if that fails."""
        self.new_base.wait()
        base = self.new_base.take()
        if base is None:
            return None
        try:
            return attempt(base)
        except DirectoryTakenError:
            raise
        except CheckpointError as error:
            self.new_base.failed(error)
            return None

    def _attempt(self, base: SaveSet | None, **what: Any) -> Manifest:
        """Writes and commits a save; if it fails, removes its files and the new base's."""
        number = self._next_number()
        self._highest = number
        written = [f"{kind}-{number}" for kind in ("base", "delta", "dense")]
        written += [] if base is None else [f"base-{base.number}"]
        try:
            self._take_tried()
            self._before = self._cuts, self._since
            return self._save(number, base, **what)
        except OSError as error:
            self._leftovers.discard(*written)
            raise CheckpointError(f"cannot write in {self._directory.path}: {error}") from error
        except BaseException:
            self._leftovers.discard(*written)
            raise

    def _save(
        self,
        number: int,
        base: SaveSet | None,
        *,
        step: int,
        ledger: Mapping[str, Any],
        partially_applied: Callable[[], Mapping[str, Any]],
        progress: Mapping[str, Any],
        final: bool,
        rest_secs: float,
    ) -> Manifest:
        began = time.monotonic()
        restarts = self._restarts and self.last is not None
        kind: WriteKind = "base" if self.last is None or restarts else "delta"
        save, cuts = self._write(kind, number, step, rest_secs)
        arrays = {name: v.numpy() for name, v in self._variables.items()}
        for name in self._must_be_finite:
            if not np.isfinite(arrays[name]).all():
                raise TrainingError(f"{name} of the network is not finite by step {step}")
        doing = partially_applied()
        dense = write_dense(self._directory.dense_path(number), arrays, root=self._directory.path)
        if self._evicted is not None:
            self._evicted.finish(number)
        with self._directory.exclusive():
            chain = rebase(self._chain(), base)  # which also finds other runs
            history = secrets.token_hex(8) if restarts else self._history
            manifest = Manifest(
                number=max([number, *(n + 1 for n in self._directory.numbers()[-1:])]),
                step=step,
                wall_time=time.time(),
                chain=(save,) if restarts else extend(chain, save),
                dense=dense,
                ledger={**ledger, **doing},
                tables=tuple(describe_tables(self._collection)),
                num_shards=self._collection.num_shards,
                model=self._model,
                history=history,
                progress=dict(progress),
                final=final,
                vectors=self._vectors,
            )
            take = functools.partial(self._take, manifest, save, base, cuts)
            self._tried = (manifest, take)
            self._directory.commit(manifest)
            self._tried = None
            take()
            self._collect_garbage([] if self.new_base.name is None else [self.new_base.name])
        self._count(save, time.monotonic() - began)
        return manifest

    def _collect_garbage(self, under_way: Sequence[str]) -> None:
        """Removes what nothing needs any more. The save is committed, whether this succeeds or not.

        What stays is removed after a later save.
        """
        try:
            collect_garbage(self._directory, self._keep, under_way=under_way)
        except CheckpointError as error:
            if not self._failed_collections:
                self._news.append(
                    f"{error}: old checkpoints stay, and are removed after a later save"
                )
            self._failed_collections += 1
        else:
            if self._failed_collections:
                self._news.append("old checkpoints are removed again")
            self._failed_collections = 0

    def _take(
        self,
        manifest: Manifest,
        save: SaveSet,
        base: SaveSet | None,
        cuts: dict[tuple[str, int], int],
    ) -> None:
        """Makes a committed manifest the one to go on from."""
        self.last = manifest
        if save.kind == "base":
            self._history, self._delta_bytes, self._restarts = manifest.history, [], False
        if base is not None:
            self.new_base.committed()
            self._delta_bytes = [each.bytes for each in split_head(manifest.chain)[1]]
        elif save.kind == "delta":
            self._delta_bytes.append(save.bytes)
        if base is not None or save.kind == "base" or not self._rebase.cumulative:
            self._cuts, self._since = cuts, save.number

    def _take_tried(self) -> None:
        """Goes on from a manifest that was in place although its commit failed."""
        if self._tried is not None:
            manifest, take = self._tried
            if self._directory.latest() == manifest:
                take()
            self._tried = None

    def _count(self, save: SaveSet, secs: float) -> None:
        counts = self.counts[save.kind]
        counts["count"] += 1
        counts["bytes"] += save.bytes
        counts["rows"] += save.rows
        counts["secs"] = round(counts["secs"] + secs, 3)

    def _next_number(self) -> int:
        """Gives a number that no save had: the writer of a failed one may still be at work."""
        return max(self._directory.next_number(), self._highest + 1)

    def _is_base_due(self) -> bool:
        if self.new_base.name is not None or self.last is None:
            return False
        head, _ = split_head(self.last.chain)
        return self._rebase.due(sum(save.bytes for save in head), self._delta_bytes)

    def _begin_base_if_due(self, step: int, rest_secs: float) -> None:
        if not self._is_base_due():
            return
        if self.new_base.waits():
            return
        number = self._next_number()
        self._highest = number

        def write() -> SaveSet:
            began = time.monotonic()
            save, _ = self._write("copy", number, step, _BASE_RESTS * rest_secs)
            self._count(save, time.monotonic() - began)
            return save

        self.new_base.begin(number, write)

    def _chain(self) -> tuple[SaveSet, ...]:
        """Gives the chain of the last commit, or what a compaction made of it meanwhile.

        Raises:
          DirectoryTakenError: another run commits here.
        """
        newest = self._directory.latest()
        if self.last is None:
            if newest is not None:
                raise DirectoryTakenError(
                    f"{self._directory.path}: there must be no manifest before this run's first, "
                    f"but there is {newest.number}: another run writes here"
                )
            return ()
        if newest is None or newest.number == self.last.number:
            return self.last.chain
        base = newest.chain[0]
        if (
            newest.history != self.last.history
            or replace_start(self.last.chain, base) != newest.chain
        ):
            raise DirectoryTakenError(
                f"{self._directory.path}: manifest {newest.number} must be this run's last, "
                f"{self.last.number}, or a compaction of it: another run writes here"
            )
        self._delta_bytes = [save.bytes for save in split_head(newest.chain)[1]]
        return newest.chain

    def _write(
        self, what: WriteKind, number: int, step: int, rest_secs: float
    ) -> tuple[SaveSet, dict[tuple[str, int], int]]:
        kind: SaveKind = "delta" if what == "delta" else "base"
        folder = self._directory.path / f"{kind}-{number}"
        files = self._collection.files.write(
            what,
            str(folder.absolute()),
            since=self._cuts,
            encoding=self._encoding,
            max_pause_secs=rest_secs,
        )
        save = SaveSet(
            kind=kind,
            number=number,
            step=step,
            since=self._since if kind == "delta" else None,
            files=tuple(map(self._entry, files)),
            admission=tuple(self._entry(f.admission) for f in files if f.admission is not None),
        )
        return save, {(f.group, f.shard): f.cut for f in files}

    def _entry(self, file: ShardFile) -> FileEntry:
        root = self._directory.path.absolute()
        return FileEntry(
            path=str(file.path).removeprefix(f"{root}/"),
            bytes=file.bytes,
            rows=file.rows,
            removed=file.removed,
            xxh3_64=file.xxh3_64,
            blocks=file.blocks,
        )
