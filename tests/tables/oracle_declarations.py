"""What the table of a random trace declares: dtypes, an optimizer and policies, also combined."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from pathlib import Path
from typing import Literal

from embedps.tables import (
    SGD,
    Adagrad,
    Chance,
    Ftrl,
    Initializer,
    LazyAdam,
    MinCount,
    MinNorm,
    RowwiseAdagrad,
    SizeLimit,
    TableSpec,
    TimeToLive,
)
from embedps.tables.admission import Admission
from embedps.tables.byte_limits import ServerLimit
from embedps.tables.eviction import EvictionPolicy
from embedps.tables.tiered import Tiered
from tests.tables.admission_twin import CounterTwin
from tests.tables.builders import constant
from tests.tables.stripe_twin import (
    COUNTER_PARTS,
    COUNTING_BYTES,
    EVICTED_BYTES,
    counted_bytes,
    least_bytes,
    stripe_of,
)

TABLE = "t"
LEAST_COUNTING = COUNTER_PARTS * COUNTING_BYTES  # the least byte limit of a table that counts


@functools.cache
def crowded() -> list[int]:
    """Ids of three stripes, so that limits and candidates matter with few of them."""
    ids = (i for i in itertools.count() if stripe_of(TABLE, i) in (7, 8, 50))
    return list(itertools.islice(ids, 150))


OPTIMIZERS = [
    SGD(),
    SGD(lazy_decay=0.5),
    RowwiseAdagrad(),
    Adagrad(lazy_decay=0.1),
    LazyAdam(),
    Ftrl(l1_regularization_strength=0.3, l2_regularization_strength=0.1),
]
SCATTERED = [*range(-20, 40), -(2**63), 2**63 - 1]


class Declarations:
    """What a trace declares first, and at restores: some fields are the same in all.

    Attributes:
      ids: that the trace uses.
      most_shards: that it restores onto.
      counters: a twin, by which counters expire.
      keeps_evicted: whether evicted rows are written to files.
      long_steps: steps beyond those that follow each other, so that counters expire.
    """

    def __init__(self, draw: random.Random) -> None:
        self.ids = crowded() if draw.random() < 0.7 else SCATTERED
        self.most_shards = draw.choice([1, 1, 2, 3])
        self._admits = draw.random() < 0.4
        expire_steps = draw.choice([0, 0, 1024])
        self._expire_steps = expire_steps if self._admits else 0
        self.counters = CounterTwin(self._expire_steps)
        self.long_steps = [1500] if self._expire_steps else []
        self.keeps_evicted = draw.random() < 0.4
        self._first = TableSpec(
            name=TABLE,
            embedding_dim=draw.choice([1, 2, 3]),
            optimizer=draw.choice(OPTIMIZERS),
            initializer=draw.choice([constant(1.0), Initializer.uniform(1.5)]),
            seed=draw.choice([0, -5]),
            capacity=draw.choice([0, 0, 0, 0, 30]),
            absent=draw.choice(["zeros", "initial"]),
        )

    def draw(self, draw: random.Random) -> TableSpec:
        """Declares policies and dtypes."""
        spec = dataclasses.replace(
            self._first,
            admission=self._admission(draw),
            row_dtype=draw.choice(["float32", "float32", "bfloat16", "float16"]),
            slot_dtype=draw.choice(["float32", "float32", "bfloat16"]),
        )
        return dataclasses.replace(spec, eviction=tuple(self._eviction(spec, draw)))

    def _admission(self, draw: random.Random) -> Admission | None:
        if not self._admits:
            return None
        count = MinCount(count=draw.choice([2, 2, 3, 5]), expire_steps=self._expire_steps)
        # Counters may come back if a table counts again, and then it matters which have expired.
        others = [] if self._expire_steps else [Chance(probability=0.4), None]
        return draw.choice([count, count, *others])

    def _eviction(self, spec: TableSpec, draw: random.Random) -> list[EvictionPolicy]:
        policies: list[EvictionPolicy] = []
        if draw.random() < 0.6:
            steps, secs = draw.choice([(1, 0), (3, 0), (10, 0), (0, 1), (0, 3), (5, 2)])
            policies.append(TimeToLive(steps=steps, event_secs=secs))
        if draw.random() < 0.3:
            policies.append(MinNorm(norm=draw.choice([0.5, 1.0, 2.0])))
        if draw.random() < 0.6:
            rows = 0 if spec.capacity else draw.choice([0, 1, 5, 20, 90])
            room = draw.choice([0, 16, 40, 100]) * counted_bytes(spec)
            # More than a shard's least with counters, of whose part these traces fill little.
            parts = 1 if spec.admission is None else COUNTER_PARTS / (COUNTER_PARTS - 1)
            of_shard = max(
                round((self._least_bytes(spec) + room) * parts) + 1,
                0 if parts == 1 else LEAST_COUNTING,
            )
            many = 0 if rows and draw.random() < 0.5 else self.most_shards * of_shard
            if rows or many:
                policies.append(SizeLimit(max_rows=rows, max_bytes=many, order=_order(draw)))
        return policies

    def draw_server(
        self, draw: random.Random, spec: TableSpec, num_shards: int
    ) -> ServerLimit | None:
        """Declares the limit of the server that has all shards, or none."""
        if draw.random() < 0.5:
            return None
        # Admission leaves fewer rows.
        room = draw.choice([0, 0, 16] if self._admits else [0, 16, 16, 48]) * counted_bytes(spec)
        counting = COUNTING_BYTES if isinstance(spec.admission, MinCount) else 0
        least = num_shards * (self._least_bytes(spec) + counting)
        return ServerLimit(max_bytes=least + room, order=_order(draw))

    def draw_tier(self, draw: random.Random, directory: Path) -> tuple[Tiered, int] | None:
        """Declares a disk for the server's coldest rows, and the rows of a chunk; or none.

        With the least memory each stripe has one chunk; with more, chunks move between stripes.
        """
        if draw.random() < 0.1:
            return None
        room = draw.choice([0, 0, 16 << 10, 32 << 10])
        memory = Tiered(max_memory_bytes=1 + room, directory=str(directory))
        return memory, draw.choice([1, 2, 4])

    def _least_bytes(self, spec: TableSpec) -> int:
        return least_bytes(spec, EVICTED_BYTES if self.keeps_evicted else 0)


def _order(draw: random.Random) -> Literal["least_recent", "least_frequent"]:
    return "least_recent" if draw.random() < 0.5 else "least_frequent"
