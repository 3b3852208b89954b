"""Some of the ids of all steps of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

_MOST_IDS = 1 << 18


class StepSample:
    """The row hashes of steps that end in some zero bits, of as many steps as are added.

    A row is in the sample with all its steps, or with none. The more there are, the more bits.
    """

    def __init__(
        self, tables: Sequence[str], *, unit_steps: int, most_ids: int = _MOST_IDS
    ) -> None:
        """Begins without steps; a unit of an epoch has so many of them."""
        self._tables, self._unit_steps, self._most = tables, unit_steps, most_ids
        # Of each step, the hashes and how many of them each table has.
        self._steps: list[tuple[NDArray[np.uint64], NDArray[np.int32]]] = []
        self._nothing = np.zeros(0, np.uint64), np.zeros(len(tables), np.int32)
        self._num_ids, self._bits = 0, 0

    @property
    def share(self) -> float:
        """Returns the share of rows that are in the sample."""
        return 2.0**-self._bits

    @property
    def num_steps(self) -> int:
        """Returns how many steps were added."""
        return len(self._steps)

    def add(self, hashes: Mapping[str, NDArray[np.uint64]]) -> None:
        """Adds a step: the row hashes of each table's distinct ids."""
        empty, _ = self._nothing
        self._steps.append(self._choose([hashes.get(name, empty) for name in self._tables]))
        self._num_ids += len(self._steps[-1][0])
        while self._num_ids > self._most and self._bits < 63:
            self._bits += 1
            self._steps = [self._choose(self._by_table(*step)) for step in self._steps]
            self._num_ids = sum(len(chosen) for chosen, _ in self._steps)

    def _choose(
        self, by_table: Sequence[NDArray[np.uint64]]
    ) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        ones = np.uint64((1 << self._bits) - 1)
        chosen = [hashes[hashes & ones == 0] for hashes in by_table]
        counts = np.array([len(each) for each in chosen], np.int32)
        # Most of a long epoch's steps have no row of the sample: they share one.
        return (np.concatenate(chosen), counts) if counts.any() else self._nothing

    def _by_table(
        self, chosen: NDArray[np.uint64], counts: NDArray[np.int32]
    ) -> list[NDArray[np.uint64]]:
        return np.split(chosen, np.cumsum(counts)[:-1])

    def steps_of(self, seed: int | None) -> Iterator[list[list[int]]]:
        """Yields each step's hashes by table; with a seed, units come in an order that it makes."""
        firsts = np.arange(0, len(self._steps), max(self._unit_steps, 1))
        if seed is not None:
            np.random.default_rng(seed).shuffle(firsts)
        for first in firsts:
            for step in self._steps[first : first + max(self._unit_steps, 1)]:
                yield [each.tolist() for each in self._by_table(*step)]
