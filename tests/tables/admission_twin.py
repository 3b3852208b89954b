"""Admission in plain Python: what the row store must do with the ids that examples show."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from embedps.tables import Chance, MinCount, TableSpec
from tests.kernels.twins import mix64, table_salt

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1
_STEPS_PER_TICK = 1024


def examples_of(features: Iterable[Sequence[Sequence[int]]]) -> dict[int, int]:
    """Counts the examples that show each id in one feature of a table or in several.

    Args:
      features: of each, the ids of each example.
    """
    counts: dict[int, int] = {}
    for lists in zip(*features, strict=True):
        for id_ in {i for ids in lists for i in ids}:
            counts[id_] = counts.get(id_, 0) + 1
    return counts


def admits_by_chance(spec: TableSpec, id_: int, examples: int, step: int) -> bool:
    """Whether one of a step's examples admits an id of a table with a `Chance`."""
    assert isinstance(spec.admission, Chance)
    of_table = mix64(np.array([spec.seed % 2**64], np.uint64) ^ table_salt(spec.name))
    of_id = int(mix64(of_table ^ np.uint64(id_ % 2**64))[0])
    of_step = _mix((~of_id & _WORD) + step * _GOLDEN)
    threshold = int(spec.admission.probability * 2**32)
    return any(_mix(of_step + j * _GOLDEN) >> 32 < threshold for j in range(examples))


def _mix(word: int) -> int:
    return int(mix64(np.array([word & _WORD], np.uint64))[0])


Counter = tuple[int, int]
"""A count and the tick of its last example."""


class CounterTwin:
    """One shard's counts of the ids without a row, and what files must hold of them.

    It keeps what expired, so a file may lack such a counter.
    """

    def __init__(self, expire_steps: int = 0) -> None:
        self._expire_ticks = -(-expire_steps // _STEPS_PER_TICK)
        self.counts: dict[int, Counter] = {}
        self._changed: set[int] = set()
        self._pending: set[int] = set()

    def is_expired(self, counter: Counter, step: int) -> bool:
        return 0 < self._expire_ticks < step // _STEPS_PER_TICK - counter[1]

    def count(self, id_: int, step: int) -> int:
        counter = self.counts.get(id_, (0, 0))
        return 0 if self.is_expired(counter, step) else counter[0]

    def set(self, id_: int, count: int, step: int) -> None:
        self.counts[id_] = (count, max(step // _STEPS_PER_TICK, self.counts.get(id_, (0, 0))[1]))
        self._changed.add(id_)

    def erase(self, id_: int) -> None:
        self.counts.pop(id_, None)
        self._changed.add(id_)

    def cut(self, kind: str, *, committed: bool) -> dict[int, Counter | None]:
        """Returns the records of a base or delta; None is a removal."""
        self._pending = self._changed | (set() if committed else self._pending)
        self._changed = set()
        if kind == "base":
            return dict(self.counts)
        return {id_: self.counts.get(id_) for id_ in self._pending}

    def load(self, id_: int, counter: Counter | None, *, has_row: bool) -> None:
        if counter is None:
            self.counts.pop(id_, None)
        elif has_row:
            self.erase(id_)
        else:
            self.counts[id_] = counter

    def check(
        self,
        before: Mapping[int, Counter | None],
        found: Mapping[int, Counter | None],
        expected: Mapping[int, Counter | None],
        step: int,
    ) -> None:
        """Checks what files leave of the counters in the files before them.

        What expired by a step counts as absent.
        """
        assert found.keys() <= expected.keys()
        for id_, counter in expected.items():
            left = found.get(id_, before.get(id_))
            assert self._alive(left, step) == self._alive(counter, step)

    def _alive(self, counter: Counter | None, step: int) -> Counter | None:
        return None if counter is None or self.is_expired(counter, step) else counter


class AdmissionTwin:
    """One table's ids: those with a row, and the counts of the others.

    Attributes:
      rows: ids with a row.
      refused: ids that got no row, once per step.
    """

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._counters = CounterTwin(
            spec.admission.expire_steps if isinstance(spec.admission, MinCount) else 0
        )
        self.rows: set[int] = set()
        self.refused = 0

    @property
    def counts(self) -> dict[int, Counter]:
        """Maps an id without a row to the examples that showed it, and the tick of the last."""
        return self._counters.counts

    def step(self, shown: Mapping[int, int], number: int) -> set[int]:
        """Takes a step's examples per id; returns the ids that it admits."""
        admitted = set()
        for id_, examples in shown.items():
            if id_ in self.rows:
                continue
            if self._admits(id_, examples, number):
                admitted.add(id_)
                self._counters.erase(id_)
            else:
                self.refused += 1
        self.rows |= admitted
        return admitted

    def remove(self, ids: Iterable[int]) -> None:
        """Removes rows and forgets counts."""
        for id_ in ids:
            self.rows.discard(id_)
            self._counters.erase(id_)

    def _admits(self, id_: int, examples: int, number: int) -> bool:
        policy = self._spec.admission
        if isinstance(policy, Chance):
            return admits_by_chance(self._spec, id_, examples, number)
        if not isinstance(policy, MinCount):
            return True
        count = self._counters.count(id_, number) + examples
        self._counters.set(id_, count, number)
        return count >= policy.count
