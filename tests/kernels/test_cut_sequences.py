"""Random sequences of touches, updates, removals, evictions, cuts and restores, against a dict.

Two groups: Adagrad's rows with a slot of their width, row-wise Adagrad's with one of one float.
"""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from embedps.tables import Adagrad, RowwiseAdagrad
from tests.tables.builders import (
    Row,
    constant,
    cuts_of,
    group_files,
    ids,
    make_collection,
    make_table,
    remove,
    rows_in,
    rows_of,
    train,
)

# Numbers that float32 represents exactly, so the model is exact bit for bit.
LEARNING_RATE = 0.5
EPSILON = 0.25
NAMES = ("t", "u")
TABLES = [
    make_table(
        name, 2, optimizer=kind(initial_accumulator_value=0.0, epsilon=EPSILON), initializer=first
    )
    for name, kind, first in (
        ("t", Adagrad, constant(1.0)),
        ("u", RowwiseAdagrad, constant(-2.0)),
    )
]
FIRST = {t.name: t.initializer.low for t in TABLES if t.initializer}
EDGES = [-(2**63), 2**63 - 1]
SOME_IDS = st.lists(st.sampled_from([*range(-1, 12), *EDGES]), max_size=8, unique=True)


def _new(name: str) -> Row:
    slot = (0.0,) * (2 if name == "t" else 1)
    return Row(embedding=(FIRST[name],) * 2, slots=(slot,), last_step=0, frequency=0)


def _updated(row: Row, gradient: float, step: int) -> Row:
    """Updates a row of either kind. Equal gradients have a mean square of their own square."""
    g, lr, epsilon = np.float32(gradient), np.float32(LEARNING_RATE), np.float32(EPSILON)
    accumulator = np.float32(row.slots[0][0]) + g * g
    embedding = np.float32(row.embedding[0]) - lr * g / (np.sqrt(accumulator) + epsilon)
    return Row(
        embedding=(float(embedding),) * 2,
        slots=((float(accumulator),) * len(row.slots[0]),),
        last_step=step,
        frequency=row.frequency + 1,
    )


class Chain(RuleBasedStateMachine):
    """`model` is what the store must hold, `committed` the rows of the committed files."""

    @initialize(num_shards=st.sampled_from([1, 2, 3]))
    def start(self, num_shards):
        self.folder = tempfile.TemporaryDirectory()
        self.num_folders = 0
        self.model: dict[tuple[str, int], Row] = {}
        self.step = 0
        self.live = make_collection(TABLES, num_shards=num_shards)
        self.files: list = []
        self.committed: dict[tuple[str, int], Row] | None = None
        self.since: dict[tuple[str, int], int] = {}

    def _new_folder(self) -> str:
        self.num_folders += 1
        return str(Path(self.folder.name) / str(self.num_folders))

    @rule(in_t=SOME_IDS, in_u=SOME_IDS, gradient=st.sampled_from([-2.0, 1.0, 4.0]))
    def update(self, in_t, in_u, gradient):
        self.step += 1
        batch = {"t": ids(*in_t), "u": ids(*in_u)}
        upstream = {n: np.full((len(batch[n]), 2), gradient, np.float32) for n in NAMES}
        train(self.live, batch, upstream, learning_rate=LEARNING_RATE, step=self.step)
        for name, used in (("t", in_t), ("u", in_u)):
            for i in used:
                row = self.model.get((name, i), _new(name))
                self.model[name, i] = _updated(row, gradient, self.step)

    @rule(name=st.sampled_from(NAMES), used=SOME_IDS)
    def touch(self, name, used):
        batch = {n: ids(*used) if n == name else ids() for n in NAMES}
        self.live.lookup(batch, insert=True)
        for i in used:
            self.model.setdefault((name, i), _new(name))

    @rule(name=st.sampled_from(NAMES), gone=SOME_IDS)
    def remove(self, name, gone):
        there = [i for i in gone if self.model.pop((name, i), None) is not None]
        assert remove(self.live, name, gone) == len(there)

    @rule(name=st.sampled_from(NAMES), age=st.integers(0, 3), max_frequency=st.integers(0, 4))
    def evict(self, name, age, max_frequency):
        before = max(self.step - age, 0)
        gone = [
            key
            for key, row in self.model.items()
            if key[0] == name and row.last_step < before and row.frequency < max_frequency
        ]
        for key in gone:
            del self.model[key]
        removed = self.live.evict(name, before_step=before, max_frequency=max_frequency)
        assert removed == len(gone)

    @rule(kind=st.sampled_from(["base", "delta", "delta"]), commits=st.booleans())
    def cut(self, kind, commits):
        if self.committed is None:
            kind = "base"
        files = self.live.files.write(kind, self._new_folder(), since=self.since)
        if not commits:
            return
        self.files = [files] if kind == "base" else [*self.files, files]
        self.since = cuts_of(files)
        self.committed = dict(self.model)

    @rule(num_shards=st.sampled_from([1, 2, 5]), goes_on=st.booleans())
    def restore(self, num_shards, goes_on):
        if self.committed is None:
            return
        restored = make_collection(TABLES, num_shards=num_shards)
        for files in self.files:
            restored.files.load(group_files(files))
        since = restored.mark_clean()
        assert rows_of(restored, Path(self._new_folder()), since=since) == self.committed
        if not goes_on:
            restored.drop()
            return
        # As after a crash: uncommitted changes are lost, and the chain continues from here.
        self.live.drop()
        self.live, self.model, self.since = restored, dict(self.committed), since

    @invariant()
    def counts_agree(self):
        rows = self.live.stats().rows
        assert rows == {n: sum(key[0] == n for key in self.model) for n in NAMES}

    def teardown(self):
        if not hasattr(self, "live"):
            return
        if self.committed is not None:
            assert rows_in([f.path for part in self.files for f in part]) == self.committed
        assert rows_of(self.live, Path(self._new_folder())) == self.model
        self.live.drop()
        self.folder.cleanup()


TestChain = Chain.TestCase
TestChain.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
