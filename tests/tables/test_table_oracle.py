"""Random traces of a table with eviction policies, against a plain-Python twin, row for row.

A trace mixes lookups, updates, steps that pass, sweeps, removals, evictions by hand, cuts, crashes,
and restores onto other numbers of shards. Every read value, every record of every file in its
order, and every count must be the twin's.
"""

import itertools
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest

from embedps import kernels
from embedps.storage import file_io
from embedps.tables import SGD, MinNorm, SizeLimit, TableSpec, TimeToLive
from embedps.tables.eviction import EvictionPolicy, store_attributes
from embedps.tables.specs import Absent
from tests.tables.builders import constant
from tests.tables.table_twin import (
    BOOKKEEPING_BYTES,
    DIM,
    FIRST_ROOM,
    LEARNING_RATE,
    TABLE_BYTES,
    Record,
    TableTwin,
    row_bytes,
    shard_of,
    stripe_of,
)

TABLE = "t"
SGD_SETTINGS = SGD().settings()
_stores = itertools.count()


def _crowded(num_ids: int) -> list[int]:
    """Ids of three stripes, so that limits and candidates matter with few of them."""
    return list(
        itertools.islice(
            (i for i in itertools.count() if stripe_of(TABLE, i) in (7, 8, 50)), num_ids
        )
    )


CROWDED = _crowded(150)
SCATTERED = [*range(-20, 40), -(2**63), 2**63 - 1]


class Shard:
    """The kernels' store of the table on one shard, without its own thread."""

    def __init__(self, spec: TableSpec, num_shards: int) -> None:
        assert spec.initializer is not None
        self.store = kernels.load().embedps_row_store(
            container="oracle",
            shared_name=f"oracle/{next(_stores)}",
            group="g",
            dim=DIM,
            optimizer="sgd",
            **SGD_SETTINGS,
            tables=[TABLE],
            seeds=[0],
            initializers=["constant"],
            initializer_lows=[spec.initializer.low],
            initializer_highs=[0.0],
            max_rows=[-(-spec.capacity // num_shards)],
            absent_read_initial=[spec.absent == "initial"],
            **store_attributes([spec.eviction], num_shards=num_shards),
            sweeps_itself=False,
        )

    def lookup(self, ids: Sequence[int], *, insert: bool) -> list[float]:
        rows = kernels.load().embedps_lookup(
            self.store, _int64(ids), _splits(ids), dim=DIM, insert=insert
        )
        return rows.numpy()[:, 0].tolist()

    def update(self, ids: Sequence[int], gradient: float, step: int) -> None:
        kernels.load().embedps_update(
            self.store,
            _int64(ids),
            _splits(ids),
            np.full((len(ids), DIM), gradient, np.float32),
            np.float32(LEARNING_RATE),
            np.int64(step),
            np.bool_(True),
        )

    def stats(self) -> tuple[int, int, int, list[int]]:
        stats = kernels.load().embedps_stats(self.store)
        _, rejected, skipped = stats.counters.numpy().tolist()
        evicted = kernels.load().embedps_eviction_stats(self.store).numpy()[0].tolist()
        return stats.rows.numpy().item(), rejected, skipped, evicted


def _int64(ids: Sequence[int]) -> np.ndarray:
    return np.array(ids, np.int64)


def _splits(ids: Sequence[int]) -> np.ndarray:
    return np.array([0, len(ids)], np.int32)


def _read(path: Path) -> list[Record]:
    with pa.OSFile(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    values = np.stack(table["embedding"].to_numpy()) if table.num_rows else np.zeros((0, DIM))
    assert (values[:, :1] == values).all()
    columns = (table[name].to_pylist() for name in ("id", "removed", "last_step", "frequency"))
    return [
        (id_, None if removed else (float(value), last_step, frequency))
        for id_, removed, last_step, frequency, value in zip(*columns, values[:, 0], strict=True)
    ]


class Trace:
    """A table under a random trace: the kernels' shards, and their twins."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.files = 0
        self.ids = CROWDED if self.random.random() < 0.7 else SCATTERED
        self.most_shards = self.random.choice([1, 1, 2, 3])
        self.capacity = self.random.choice([0, 0, 0, 0, 30])
        self.absent: Absent = self.random.choice(["zeros", "initial"])
        self.spec = self._with_policies()
        self.step = 0
        self.committed: list[list[Path]] | None = None  # the chain: files by save and shard
        self.records: list[list[list[Record]]] = []  # what the twins say that they hold
        self._start(self.most_shards)

    def _with_policies(self) -> TableSpec:
        rnd = self.random
        policies: list[EvictionPolicy] = []
        if rnd.random() < 0.5:
            policies.append(TimeToLive(steps=rnd.choice([1, 3, 10])))
        if rnd.random() < 0.3:
            policies.append(MinNorm(norm=rnd.choice([0.5, 1.0, 2.0])))
        if rnd.random() < 0.7:
            rows = 0 if self.capacity else rnd.choice([0, 1, 5, 20, 90])
            least = TABLE_BYTES + FIRST_ROOM * (row_bytes() + BOOKKEEPING_BYTES)
            room = rnd.choice([0, 16, 40, 100]) * (row_bytes() + BOOKKEEPING_BYTES)
            many = 0 if rows and rnd.random() < 0.5 else self.most_shards * (least + room)
            order: Literal["least_recent", "least_frequent"]
            order = "least_recent" if rnd.random() < 0.5 else "least_frequent"
            if rows or many:
                policies.append(SizeLimit(max_rows=rows, max_bytes=many, order=order))
        return TableSpec(
            name=TABLE,
            dim=DIM,
            optimizer=SGD(),
            initializer=constant(1.0),
            capacity=self.capacity,
            absent=self.absent,
            eviction=tuple(policies),
        )

    def _start(self, num_shards: int) -> None:
        self.num_shards = num_shards
        self.shards = [Shard(self.spec, num_shards) for _ in range(num_shards)]
        self.twins = [TableTwin(self.spec, num_shards) for _ in range(num_shards)]
        self.cuts = [-1] * num_shards
        self.last_cuts = list(self.cuts)

    def _ids(self, most: int) -> list[list[int]]:
        ids = self.random.sample(self.ids, self.random.randint(0, min(most, len(self.ids))))
        return [
            [i for i in ids if shard_of(TABLE, i, self.num_shards) == s]
            for s in range(self.num_shards)
        ]

    def _pairs(self, by_shard: list[list[int]]) -> list[tuple[Shard, TableTwin, list[int]]]:
        return list(zip(self.shards, self.twins, by_shard, strict=True))

    # ---- what a trace does -------------------------------------------------------------------

    def look(self, by_shard: list[list[int]], *, insert: bool) -> None:
        for shard, twin, ids in self._pairs(by_shard):
            expected = twin.lookup(ids, insert=insert)
            assert shard.lookup(ids, insert=insert) == [expected[i] for i in ids]

    def train(self) -> None:
        by_shard = self._ids(self.random.choice([6, 24, 24, 120]))
        self.look(by_shard, insert=True)
        self.step += self.random.choice([1, 1, 1, 4])
        gradient = self.random.choice([-2.0, 0.5, 1.0, 2.0])
        for shard, twin, ids in self._pairs(by_shard):
            shard.update(ids, gradient, self.step)
            twin.update(ids, gradient, self.step)

    def touch(self) -> None:
        self.look(self._ids(12), insert=True)

    def score(self) -> None:
        self.look(self._ids(12), insert=False)

    def sweep(self) -> None:
        for shard, twin in zip(self.shards, self.twins, strict=True):
            kernels.load().embedps_sweep(shard.store)
            twin.sweep()

    def remove(self) -> None:
        for shard, twin, ids in self._pairs(self._ids(6)):
            kernels.load().embedps_remove(shard.store, _int64(ids), table=0)
            twin.remove(ids)

    def evict(self) -> None:
        before, frequency = max(0, self.step - self.random.randint(0, 5)), self.random.randint(0, 3)
        for shard, twin in zip(self.shards, self.twins, strict=True):
            kernels.load().embedps_evict(shard.store, before, frequency, table=0)
            twin.evict(before, frequency)

    def cut(self) -> None:
        kind = "base" if self.committed is None or self.random.random() < 0.2 else "delta"
        commits = self.random.random() < 0.7
        files, records, cuts = [], [], []
        for s, (shard, twin) in enumerate(zip(self.shards, self.twins, strict=True)):
            self.files += 1
            folder = self.folder / str(self.files)
            folder.mkdir()
            path = folder / f"shard-{s}-of-{self.num_shards}.arrow"
            made = kernels.load().embedps_write_rows(
                shard.store, str(path), self.cuts[s], 0.0, kind=kind
            )
            expected = twin.cut(kind, committed=self.cuts[s] == self.last_cuts[s])
            assert _read(path) == expected
            self.last_cuts[s] = made.info.numpy()[0].item()
            cuts.append(self.last_cuts[s])
            files.append(path)
            records.append(expected)
        if commits:
            self.committed = [*(self.committed or ()), files] if kind == "delta" else [files]
            self.records = [*self.records, records] if kind == "delta" else [records]
            self.cuts = cuts

    def restore(self) -> None:
        """Goes on from the committed chain on other shards, perhaps with other policies."""
        if self.committed is None:
            return
        if self.random.random() < 0.3:
            self.spec = self._with_policies()
        self._start(self.random.randint(1, self.most_shards))
        for files, by_shard in zip(self.committed, self.records, strict=True):
            sums = [file_io.checksum_file(path) for path in files]
            digests = [int.from_bytes(bytes.fromhex(each[1]), signed=True) for each in sums]
            for s, (shard, twin) in enumerate(zip(self.shards, self.twins, strict=True)):
                kernels.load().embedps_load_rows(
                    shard.store,
                    [str(path) for path in files],
                    _int64([each[0] for each in sums]),
                    _int64(digests),
                    shard=s,
                    num_shards=self.num_shards,
                )
                for records in by_shard:
                    twin.load(r for r in records if shard_of(TABLE, r[0], self.num_shards) == s)
        for s, (shard, twin) in enumerate(zip(self.shards, self.twins, strict=True)):
            self.cuts[s] = int(kernels.load().embedps_mark_clean(shard.store))
            twin.finish_load()
        self.last_cuts = list(self.cuts)

    def check(self) -> None:
        for shard, twin in zip(self.shards, self.twins, strict=True):
            counts = [twin.evicted[cause] for cause in twin.evicted]
            assert shard.stats() == (twin.num_rows, twin.rejected, twin.skipped, counts)
            if twin.max_rows:
                assert twin.num_rows <= twin.max_rows

    def run(self, length: int) -> None:
        does = [self.train] * 8 + [self.touch, self.score, self.sweep, self.sweep]
        does += [self.remove, self.evict, self.cut, self.cut, self.restore]
        for _ in range(length):
            self.random.choice(does)()
            self.check()
        self.cut()


def run_traces(seeds: range) -> None:
    memory = Path("/dev/shm")  # a file there is written without a wait for a disk
    for seed in seeds:
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            try:
                Trace(seed, Path(folder)).run(16)
            except AssertionError as error:
                raise AssertionError(f"trace {seed}: {error}") from error
        kernels.load().embedps_drop_stores(container="oracle")


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_a_thousand_traces_agree_with_the_twin(first):
    run_traces(range(first, first + 250))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 11000, 2500))
def test_ten_thousand_traces_agree_with_the_twin(first):
    run_traces(range(first, first + 2500))
