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


class AdmissionTwin:
    """One table's ids: those with a row, and the counts of the others.

    Attributes:
      rows: ids with a row.
      counts: maps an id without a row to the examples that showed it, and the last step.
      refused: ids that got no row, once per step.
    """

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self.rows: set[int] = set()
        self.counts: dict[int, tuple[int, int]] = {}
        self.refused = 0

    def step(self, shown: Mapping[int, int], number: int) -> set[int]:
        """Takes a step's examples per id; returns the ids that it admits."""
        admitted = set()
        for id_, examples in shown.items():
            if id_ in self.rows:
                continue
            if self._admits(id_, examples, number):
                admitted.add(id_)
                self.counts.pop(id_, None)
            else:
                self.refused += 1
        self.rows |= admitted
        return admitted

    def remove(self, ids: Iterable[int]) -> None:
        """Removes rows and forgets counts."""
        for id_ in ids:
            self.rows.discard(id_)
            self.counts.pop(id_, None)

    def _admits(self, id_: int, examples: int, number: int) -> bool:
        policy = self._spec.admission
        if isinstance(policy, Chance):
            return self._admits_by_chance(policy.threshold, id_, examples, number)
        if not isinstance(policy, MinCount):
            return True
        tick = number // _STEPS_PER_TICK
        count, last = self.counts.get(id_, (0, 0))
        expire = -(-policy.expire_steps // _STEPS_PER_TICK)
        if expire and tick - last > expire:
            count = 0
        self.counts[id_] = (count + examples, tick)
        return count + examples >= policy.count

    def _admits_by_chance(self, threshold: int, id_: int, examples: int, number: int) -> bool:
        of_table = mix64(
            np.array([self._spec.seed % 2**64], np.uint64) ^ table_salt(self._spec.name)
        )
        of_id = int(mix64(of_table ^ np.uint64(id_ % 2**64))[0])
        of_step = _mix((~of_id & _WORD) + number * _GOLDEN)
        return any(_mix(of_step + j * _GOLDEN) >> 32 < threshold for j in range(examples))


def _mix(word: int) -> int:
    return int(mix64(np.array([word & _WORD], np.uint64))[0])
