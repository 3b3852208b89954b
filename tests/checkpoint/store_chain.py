"""Writes the chains that tests/checkpoint/stored/ keeps, for later versions to read.

    python -m tests.checkpoint.store_chain tests/checkpoint/stored/manifest-2

Rows are synthetic; `expected_rows` says what they are, by the optimizers' formulas.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.quantize import Encoding
from embedps.checkpoint.policies import Consecutive
from embedps.checkpoint.retention import KeepNewest
from embedps.tables import SGD, Adagrad, Ftrl, LazyAdam, RowwiseAdagrad, TableSpec
from embedps.training.checkpoint_writer import CheckpointWriter
from tests.kernels.twins import ReferenceRow, initial_values
from tests.tables.builders import constant, ids, make_collection, remove, train

LEARNING_RATE, DIM = 0.5, 3
EDGES = (-(2**63), 2**63 - 1)
TABLES = tuple(
    TableSpec(name=name, embedding_dim=DIM, optimizer=optimizer, initializer=constant(first))
    for name, optimizer, first in (
        ("sgd", SGD(), 0.5),
        ("sgd_too", SGD(), -1.0),
        ("adagrad", Adagrad(), 0.25),
        ("rowwise", RowwiseAdagrad(), 1.0),
        ("adam", LazyAdam(), 0.0),
        ("ftrl", Ftrl(l1_regularization_strength=0.01, l2_regularization_strength=0.02), 0.75),
    )
)

QUANTIZED = TABLES[2:3]


def touched(step: int) -> list[int]:
    """The ids of a step."""
    return [*(i for i in range(-12, 24) if i % (step + 1) == 0), *EDGES]


def gone(step: int) -> list[int]:
    """The ids that are removed after a step; 6 comes back with the next."""
    return {2: [6, 4, 100], 4: [0, EDGES[0]]}.get(step, [])


def gradient(step: int, id_: int) -> np.ndarray:
    """Of a step and id: float32 [dim], numbers that float32 has."""
    numbers: np.ndarray = (id_ % 5 - 2) * 0.25 + 0.125 * step + 0.0625 * np.arange(DIM)
    return numbers.astype(np.float32)


def expected_rows(tables: Sequence[TableSpec], step: int) -> dict[tuple[str, int], ReferenceRow]:
    """The rows as of a step."""
    rows: dict[tuple[str, int], ReferenceRow] = {}
    for table in tables:
        for s in range(1, step + 1):
            for i in touched(s):
                if (table.name, i) not in rows:
                    first = initial_values(table, [i])[0]
                    rows[table.name, i] = ReferenceRow(table.optimizer, first)
                rows[table.name, i].update(gradient(s, i), LEARNING_RATE)
            for i in gone(s):
                rows.pop((table.name, i), None)
    return rows


def last_step(step: int, id_: int) -> int:
    """The last step up to that one that touched an id."""
    return max(s for s in range(1, step + 1) if id_ in touched(s))


def write(
    path: Path, tables: Sequence[TableSpec], num_shards: int, num_steps: int, encoding: Encoding
) -> None:
    """Trains the steps and saves after each: a base, deltas, and a new base with its delta."""
    collection = make_collection(tables, num_shards=num_shards)
    saver = CheckpointWriter(
        CheckpointDirectory(path),
        collection,
        {},
        rebase=Consecutive(max_read_cost=3.5),
        keep=[KeepNewest(100)],
        encoding=encoding,
    )
    for step in range(1, num_steps + 1):
        batch = touched(step)
        upstream = np.stack([gradient(step, i) for i in batch])
        names = [table.name for table in tables]
        train(
            collection,
            {name: ids(*batch) for name in names},
            dict.fromkeys(names, upstream),
            learning_rate=LEARNING_RATE,
            step=step,
        )
        for name in names:
            remove(collection, name, gone(step))
        final = step == num_steps
        saver.save(step=step, ledger={"é": step}, partially_applied=dict, progress={}, final=final)


def main(path: Path) -> None:
    """Writes the chain in each encoding."""
    write(path / "float32", TABLES, 2, 5, Encoding())
    write(path / "int8", QUANTIZED, 1, 3, Encoding(rows="int8", optimizer_slots="bfloat16"))
    write(path / "int4", QUANTIZED, 1, 3, Encoding(rows="int4"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
