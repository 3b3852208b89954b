"""A random trace of a table with policies: the kernels' stores and a checkpoint, and their twins.

Every read value, every record of every file in its order, and every count must be the twin's. A
trace can be killed at each step on the disk, and then goes on from what the disk holds.
"""

from __future__ import annotations

import collections
import itertools
import pickle
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from embedps.checkpoint.chain import extend, rebase
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest, SaveKind, SaveSet
from embedps.checkpoint.retention import KeepNewest, collect_garbage
from embedps.checkpoint.tools.compact import compact
from embedps.checkpoint.tools.evict import Selection, evict
from embedps.checkpoint.tools.verify import verify
from embedps.scheduling.event_clock import EventClock
from embedps.tables import TimeToLive
from embedps.tables.eviction import find
from embedps.tables.tiered import Tiered
from embedps.training.leftover_saves import LeftoverSaves
from tests.checkpoint.readers import newest_of
from tests.tables.chain_twin import (
    Chain,
    Fields,
    TwinSave,
    all_counters,
    compacted,
    evicted,
    of_shard,
    rebased,
    rows_by_file,
)
from tests.tables.clock_twin import ClockTwin
from tests.tables.oracle_declarations import TABLE, Declarations
from tests.tables.oracle_evicted import EvictedFiles
from tests.tables.oracle_store import GROUP, Store, read_counters, read_records
from tests.tables.stripe_twin import shard_of
from tests.tables.table_twin import ServerTwin, TableTwin

LENGTH = 14
_starts = itertools.count()
HISTORY = "0123456789abcdef"
Key = tuple[tuple[str, int], ...]  # the kinds and numbers of a chain's saves
Outcome = tuple[Chain, tuple[int, int]]  # what is committed, and the step and units as of then


class Trace:
    """Shards and their twins under a seed's operations."""

    def __init__(self, seed: int, folder: Path) -> None:
        """Begins a trace, or goes on with one that was killed, whose journal is in the folder."""
        self.random = random.Random(seed)
        self.folder = folder
        self.directory = CheckpointDirectory(folder / "model")
        self.declared = Declarations(self.random)
        self.spec = self.declared.draw(self.random)
        self.left = LENGTH
        self.did: collections.Counter[str] = collections.Counter()
        draw = self.random
        lengths = [draw.choice([1, 1, 2, 3]) for _ in range(14)]
        self.first_steps = [0, *itertools.accumulate(lengths[1:])]
        times = [1000 * i + draw.choice([0, 0, -3000, 900, 10**9]) for i in range(14)]
        self.event_clock = EventClock(self.first_steps, times)
        self.clock = ClockTwin(self.first_steps, times)
        self.chain: Chain = ()
        self.at_commit = (0, 0)  # the step and the units that are done
        self.base: tuple[SaveSet, TwinSave] | None = None  # written beside the chain
        self.num_shards = self.declared.most_shards
        self.server = self.declared.draw_server(draw, self.spec, self.num_shards)
        self.server_twin: ServerTwin | None = None
        folder.mkdir(exist_ok=True)
        self.spill = folder / "spill"
        self.tier = self._draw_tier()
        self.stores: list[Store] = []
        keeps = self.declared.keeps_evicted
        self.evicted_files = EvictedFiles(folder, self.directory) if keeps else None
        if self._journal.exists():
            self._go_on_after_a_kill()
        else:
            self._start()

    def run(self) -> None:
        train = [self.train] * 16 + [self.repeat, self.touch, self.touch, self.score, self.score]
        ticks = [self.tick] * 5 + [self.sweep] * 4
        disk = [self.save] * 5 + [self.copy, self.restore, self.restore, self.clear, self.compact]
        removes = [self.remove, self.remove, self.evict, self.evict, self.evict_by_tool]
        does = [*train, *ticks, *disk, *removes]
        while self.left:
            self.left -= 1
            do = self.random.choice(does)
            do()
            self.did[do.__name__] += 1
            if self.left % 3 == 0:
                self.check()
        self.save()
        self.did[self.spec.optimizer.kind] += 1
        self._count_server()
        self._count_disk()

    # ---- stores and twins --------------------------------------------------------------------

    def _draw_tier(self) -> tuple[Tiered, int] | None:
        # A server has a limit or a disk.
        return self.declared.draw_tier(self.random, self.spill) if self.server is None else None

    def _start(self, *, clears: bool = False) -> None:
        """Starts with the newest chain, or with empty tables: new stores, or those that there are.

        A spill file is of one process, so none can be left of another's.
        """
        assert clears or not self.spill.exists() or not list(self.spill.iterdir())
        n = self.num_shards
        self.step, self.units_done = self.at_commit
        self.base = None
        keeps = self.declared.keeps_evicted
        if clears:
            for store in self.stores:
                store.clear()
        else:
            memory = f"memory/{next(_starts)}"
            self.stores = [
                Store(self.spec, n, self.server, tier=self.tier, memory=memory, keeps_evicted=keeps)
                for _ in range(n)
            ]
        self.server_twin = None if self.server is None else ServerTwin(self.server)
        self.twins = [
            TableTwin(self.spec, n, self.clock, self.server_twin, keeps_evicted=keeps)
            for _ in range(n)
        ]
        self.cuts = [-1] * n  # of the last committed save
        newest = self.directory.latest()
        if newest is not None:
            for s, store in enumerate(self.stores):
                self.cuts[s] = store.load(self.directory, newest, s, n)
            for s, twin in enumerate(self.twins):
                self._load(twin, s)
        self.last_cuts = list(self.cuts)
        if self.evicted_files is not None:
            self.evicted_files.begin(self.stores, self.twins, newest)
        self._set_oldest_step()

    def _count_server(self) -> None:
        if self.server_twin is not None and self.server_twin.refusals:
            self.did["at_server_limit"] += 1
            self.did["counting_at_server_limit"] += self.twins[0].counters is not None

    def _count_disk(self) -> None:
        for store in self.stores:
            self.did.update(store.on_disk())
        self.did["tiered"] += bool(self.stores) and self.tier is not None

    def _load(self, twin: TableTwin, shard: int) -> None:
        n = self.num_shards
        for save in self.chain:
            for file in save.files:
                twin.load(of_shard(TABLE, file.rows, shard, n))
        twin.finish_load()
        for save in self.chain:
            for file in save.files:
                counters = (file.counters or {}).items()
                twin.load_counters({i: c for i, c in counters if shard_of(TABLE, i, n) == shard})

    def _by_shard(self, ids: Iterable[int]) -> Iterable[tuple[Store, TableTwin, list[int]]]:
        of_shards: list[list[int]] = [[] for _ in self.twins]
        for id_ in ids:
            of_shards[shard_of(TABLE, id_, self.num_shards)].append(id_)
        return zip(self.stores, self.twins, of_shards, strict=True)

    def _some(self, most: int) -> list[int]:
        ids = self.declared.ids
        return self.random.sample(ids, self.random.randint(0, min(most, len(ids))))

    # ---- what a trace does -------------------------------------------------------------------

    def _look(self, ids: Sequence[int], *, insert: bool) -> None:
        for store, twin, mine in self._by_shard(ids):
            expected = twin.lookup(mine, insert=insert)
            assert store.lookup(mine, insert=insert) == [expected[i] for i in mine]

    def train(self) -> None:
        self._train(is_new=True)

    def repeat(self) -> None:
        """Attempts a step again that was applied already."""
        self._train(is_new=False)

    def _train(self, *, is_new: bool) -> None:
        ids = self._some(self.random.choice([6, 24, 24, 120]))
        if self.random.random() < 0.3:  # some of them, of which some have no row
            for store, _, mine in self._by_shard(ids[::2]):
                store.read_ahead(mine)
        if is_new:
            self.step += self.random.choice([1, 1, 1, 4, *self.declared.long_steps])
        # Workers' steps come out of order.
        step = max(self.step - self.random.choice([0, 0, 0, 2]), self.step // 1024 * 1024)
        gradient = self.random.choice([-2.0, 0.5, 1.0, 1.7])
        for store, twin, mine in self._by_shard(ids):
            scales = [(i % 7 - 2) * 0.25 for i in mine]
            gradients = np.outer(scales, [gradient, 1.0, -0.3][: self.spec.embedding_dim]).astype(
                np.float32
            )
            if self.spec.admission is None:
                expected = twin.lookup(mine, insert=True)
                assert store.lookup(mine, insert=True) == [expected[i] for i in mine]
            else:
                examples = {i: self.random.choice([1, 1, 2, 3]) for i in mine}
                expected, absent = twin.lookup_shown(examples, step)
                found, is_absent = store.lookup_shown(examples, step)
                assert found == [expected[i] for i in mine]
                assert is_absent == [i in absent for i in mine]
                store.admit(examples, is_absent, step, is_new=is_new)
                if is_new:
                    twin.admit(examples, [i for i in mine if i in absent], step)
            store.update(mine, gradients, step, is_new=is_new)
            if is_new:
                twin.update(mine, gradients, step)

    def touch(self) -> None:
        self._look(self._some(12), insert=True)

    def score(self) -> None:
        self._look(self._some(12), insert=False)

    def tick(self) -> None:
        """Advances the event clock to the units that the steps have passed, or a bit further."""
        passed = sum(first <= self.step for first in self.first_steps) - 1
        self.units_done = max(self.units_done, passed + self.random.choice([0, 0, 1, 3]))
        self._set_oldest_step()

    def _set_oldest_step(self) -> None:
        age = find(self.spec.eviction, TimeToLive)
        if age is None or not age.event_secs:
            return
        oldest = self.event_clock.first_step_within(
            1000 * age.event_secs, units_done=self.units_done
        )
        for store, twin in zip(self.stores, self.twins, strict=True):
            store.set_oldest_step(oldest)
            twin.units_done = self.units_done

    def sweep(self) -> None:
        for store, twin in zip(self.stores, self.twins, strict=True):
            store.sweep()
            twin.sweep()

    def remove(self) -> None:
        for store, twin, ids in self._by_shard(self._some(6)):
            store.remove(ids)
            twin.remove(ids)

    def evict(self) -> None:
        before, frequency = max(0, self.step - self.random.randint(0, 5)), self.random.randint(0, 3)
        for store, twin in zip(self.stores, self.twins, strict=True):
            store.evict(before, frequency)
            twin.evict(before, frequency)

    def check(self) -> None:
        for store, twin in zip(self.stores, self.twins, strict=True):
            assert store.num_rows == twin.num_rows
            assert store.counts() == [
                *(twin.rejected, twin.skipped),
                *twin.evicted.values(),
                *(twin.admitted, twin.refused),
            ]
            assert not twin.max_rows or twin.num_rows <= twin.max_rows
        if self.server_twin is not None:
            assert self.server_twin.charged_bytes <= self.server_twin.limit.max_bytes

    # ---- on the disk -------------------------------------------------------------------------

    def save(self) -> None:
        """Cuts all shards, and commits the save or not."""
        is_base = not self.chain or self.random.random() < 0.1
        kind: SaveKind = "base" if is_base else "delta"
        number = self.directory.next_number()
        files = [
            twin.cut(kind, committed=cut == last)
            for twin, cut, last in zip(self.twins, self.cuts, self.last_cuts, strict=True)
        ]
        save = TwinSave(kind, number, self.num_shards, files)
        commits = self.random.random() < 0.8
        before = () if kind == "base" else rebased(self.chain, self.base and self.base[1])
        chain = (*before, save)
        position = self.step, self.units_done
        self._write_journal(chain if commits else None, position)
        stored = self._write(kind, save, since=self.chain[-1].number if self.chain else None)
        if self.evicted_files is not None and (commits or self.random.random() < 0.5):
            self.did["evicted"] += self.evicted_files.finish(self.spec, number)
        if not commits:
            return
        old = () if kind == "base" else rebase(self._stored_chain(), self.base and self.base[0])
        with self.directory.exclusive():
            self._commit(number, extend(old, stored))
            if self.random.random() < 0.4:
                collect_garbage(self.directory, [KeepNewest(2)])
        self.chain, self.at_commit, self.base = chain, position, None
        self.cuts = list(self.last_cuts)

    def copy(self) -> None:
        """Writes a base beside the chain, which the next save starts with."""
        if not self.chain or self.base is not None:
            return
        files = [twin.copy() for twin in self.twins]
        base = TwinSave("base", self.directory.next_number(), self.num_shards, files)
        self._write_journal()
        self.base = self._write("copy", base, since=None), base

    def restore(self) -> None:
        """Goes on from the committed chain on other shards, perhaps with other policies."""
        if self.random.random() < 0.4:
            self.spec = self.declared.draw(self.random)
        self._count_disk()
        self.num_shards = self.random.randint(1, self.declared.most_shards)
        self.server = self.declared.draw_server(self.random, self.spec, self.num_shards)
        self.tier = self._draw_tier()
        self._count_server()
        self._begin_again(clears=False)

    def clear(self) -> None:
        """Goes on from the committed chain in the stores that there are."""
        if self.evicted_files is None:  # else a new run begins the files, which has new stores
            self._count_server()
            self._begin_again(clears=True)

    def _begin_again(self, *, clears: bool) -> None:
        self._write_journal()
        LeftoverSaves(self.directory).remove_uncommitted()
        self._start(clears=clears)

    def compact(self) -> None:
        """Merges the chain while the stores go on."""
        if not self.chain:
            return
        after = (compacted(self.chain),) if len(self.chain) > 1 else self.chain
        self._write_journal(after, self.at_commit)
        assert (compact(self.directory) is None) == (len(self.chain) == 1)
        self.chain = after
        self._check_files(self._stored_chain()[0], after[0])

    def evict_by_tool(self) -> None:
        """Ends the run, evicts rows of what it committed, and starts it again."""
        if not self.chain:
            return
        selection = Selection(
            before_step=self.random.choice([None, self.step - 2, self.step + 1]),
            max_frequency=self.random.choice([None, 2]),
            below_norm=self.random.choice([0.5, 1.5, 3.0]),
        )
        number = self.directory.next_number()
        delta = evicted(self.chain, lambda fields: _is_selected(selection, fields), number)
        gone = sum(len(file.rows) for file in delta.files)
        after = (*self.chain, delta) if gone else self.chain
        kept = sum(len(rows) for rows in rows_by_file(after))
        self._write_journal(after, self.at_commit)
        files = self.evicted_files
        result = evict(
            self.directory,
            TABLE,
            selection,
            evicted_rows=None if files is None else str(files.path),
        )
        assert (result.removed, result.kept) == (gone, kept)
        if files is not None:
            files.check_tool(self.spec, self.chain, delta, step=self.at_commit[0])
        self.chain = after
        if gone:
            self._check_files(self._stored_chain()[-1], delta)
        self.restore()

    def _write(self, what: str, save: TwinSave, *, since: int | None) -> SaveSet:
        """Writes a file per shard and compares each with its twin's records."""
        rows, admission = [], []
        kind: SaveKind = "delta" if what == "delta" else "base"
        for s, store in enumerate(self.stores):
            path = self.directory.shard_path(kind, save.number, GROUP, s, self.num_shards)
            cut, entries = store.write(what, self.directory, path, self.cuts[s])
            if what != "copy":
                self.last_cuts[s] = cut
            rows.append(entries[0])
            admission += entries[1:]
        stored = SaveSet(
            kind=kind,
            number=save.number,
            step=self.step,
            since=since if kind == "delta" else None,
            files=tuple(rows),
            admission=tuple(admission),
        )
        self._check_files(stored, save)
        return stored

    def _stored_chain(self) -> tuple[SaveSet, ...]:
        newest = newest_of(self.directory)
        return newest.chain

    def _check_files(self, stored: SaveSet, save: TwinSave) -> None:
        assert len(stored.files) == len(save.files)
        for entry, file in zip(stored.files, save.files, strict=True):
            assert read_records(self.directory.file(entry), self.spec) == file.rows
        counters = {}
        for entry in stored.admission:
            counters.update(read_counters(self.directory.file(entry)))
        if any(file.counters is not None for file in save.files):
            before = {} if save.kind == "base" else all_counters(self.chain)
            self.declared.counters.check(before, counters, all_counters((save,)), self.step)
        else:
            assert not counters

    def _commit(self, number: int, chain: tuple[SaveSet, ...]) -> None:
        self.directory.commit(
            Manifest(
                number=number,
                step=self.step,
                wall_time=1.7e9,
                chain=chain,
                dense=None,
                ledger={},
                tables=({**self.spec.to_json(), "group": GROUP},),
                num_shards=self.num_shards,
                history=HISTORY,
            )
        )

    # ---- kills -------------------------------------------------------------------------------

    @property
    def _journal(self) -> Path:
        return self.folder / "journal"

    def _write_journal(
        self, chain: Chain | None = None, position: tuple[int, int] = (0, 0)
    ) -> None:
        """Notes, before a step on the disk, what the disk may hold after a kill.

        Args:
          chain: what it may hold besides the chain of now, if that changes.
          position: the step and the units that are done then.
        """
        outcomes: dict[Key, Outcome] = {_key(self.chain): (self.chain, self.at_commit)}
        if chain is not None:
            outcomes[_key(chain)] = (chain, position)
        state = (self.random, self.spec, self.left, self.did, self.num_shards, outcomes)
        self._journal.write_bytes(pickle.dumps(state))

    def _go_on_after_a_kill(self) -> None:
        state = pickle.loads(self._journal.read_bytes())
        self.random, self.spec, self.left, self.did, self.num_shards, outcomes = state
        newest = self.directory.latest()
        key = () if newest is None else tuple((save.kind, save.number) for save in newest.chain)
        self.chain, self.at_commit = outcomes[key]
        assert not verify(self.directory, self.directory.numbers()).problems
        self.did["killed"] += 1
        self.restore()


def _key(chain: Chain) -> Key:
    return tuple((save.kind, save.number) for save in chain)


def _is_selected(selection: Selection, fields: Fields) -> bool:
    w, _, last_step, frequency = fields
    return all(
        [
            selection.before_step is None or last_step < selection.before_step,
            selection.max_frequency is None or frequency < selection.max_frequency,
            selection.below_norm is None or sum(x**2 for x in w) < selection.below_norm**2,
        ]
    )
