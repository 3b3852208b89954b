"""Kills savers, at every step of a commit on the disk and at seeded ones, and reads what is left.

A program of its own, which forks one process a crash: it imports TensorFlow and runs nothing in it,
so that each of those starts with the library loaded and no threads. Prints a JSON of counts.

    python -m tests.checkpoint.crash_program DIR NUM_CRASHES
"""

import functools
import json
import random
import sys
from pathlib import Path

import numpy as np

import embedps  # noqa: F401  chooses Keras 2 before TensorFlow's import
from embedps import kernels
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_dense
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.policies import Consecutive
from embedps.checkpoint.retention import KeepNewest
from embedps.checkpoint.tools.compact import compact
from embedps.checkpoint.tools.verify import verify
from embedps.tables import Adagrad
from embedps.training.checkpoint_writer import CheckpointWriter
from tests.checkpoint.readers import read_chain
from tests.forks import arm, is_killed
from tests.tables.builders import constant, ids, make_collection, make_table, remove, train

LEARNING_RATE, EPSILON, DIM = 0.5, 0.25, 2
TABLE = make_table(
    "t",
    DIM,
    optimizer=Adagrad(initial_accumulator_value=0.0, epsilon=EPSILON),
    initializer=constant(1.0),
)
Rows = dict[int, tuple[float, float, int, int]]  # value, accumulator, last step, frequency


def changes_of(step: int) -> tuple[list[int], list[int], float]:
    """What a step touches, what goes after it, and the gradient."""
    draw = random.Random(step)
    touched = sorted(draw.sample(range(-20, 40), draw.randint(1, 25)))
    return touched, draw.sample(range(-20, 40), 5), float(draw.choice([-2, 1, 3]))


def after(rows: Rows, step: int) -> Rows:
    """The rows once a step was done, by Adagrad's formula in float32."""
    touched, gone, gradient = changes_of(step)
    rows = dict(rows)
    g, lr, epsilon = np.float32(gradient), np.float32(LEARNING_RATE), np.float32(EPSILON)
    for i in touched:
        value, sums, _, frequency = rows.get(i, (1.0, 0.0, 0, 0))
        accumulator = np.float32(sums) + g * g
        moved = np.float32(value) - lr * g / (np.sqrt(accumulator) + epsilon)
        rows[i] = (float(moved), float(accumulator), step, frequency + 1)
    for i in gone:
        rows.pop(i, None)
    return rows


def read(directory: CheckpointDirectory, manifest: Manifest) -> Rows:
    """The rows of a manifest, without the kernels."""
    (group,) = {table["group"] for table in manifest.tables}
    rows: Rows = {}
    for row in read_chain(directory, manifest, group).to_pylist():
        (value, second), (sums, other) = row["embedding"], row["accumulator"]
        if (value, sums) != (second, other):
            raise SystemExit(f"row {row['id']} is torn: {row}")
        rows[row["id"]] = (value, sums, row["last_step"], row["frequency"])
    return rows


def save(directory: CheckpointDirectory, step: int, fault: str) -> None:
    """Restores, trains one step and saves it; every third time merges the chain as well."""
    import tensorflow as tf

    collection = make_collection([TABLE], num_shards=1 + step % 2)
    network = tf.Variable([0.0])
    keep = [KeepNewest(2)]
    saver = CheckpointWriter(
        directory, collection, {"0000": network}, rebase=Consecutive(max_read_cost=4.0), keep=keep
    )
    last = directory.latest()
    if last is not None:
        saver.restore(last)
    touched, gone, gradient = changes_of(step)
    upstream = {"t": np.full((len(touched), DIM), gradient, np.float32)}
    train(collection, {"t": ids(*touched)}, upstream, learning_rate=LEARNING_RATE, step=step)
    remove(collection, "t", gone)
    network.assign([float(step)])
    arm(fault)
    # A base that is due is waited for at a run's end, and left half-written where a run breaks off.
    final = step % 2 == 0
    saver.save(step=step, ledger={}, partially_applied=dict, progress={"step": step}, final=final)
    if step % 3 == 0:
        compact(directory)


def main(path: Path, num_crashes: int) -> None:
    """Goes on until so many were killed, each where its turn or its seed says."""
    kernels.load()
    directory = CheckpointDirectory(path)
    committed: Rows = {}
    step, killed, survived, last_step = 1, 0, 0, 0
    reached = most = 0
    swept = False
    draw = random.Random(0)
    while killed < num_crashes:
        # The kernels' steps one after the other, until a save gets past them all; then any.
        point = draw.choice(["row_file.any", "io.any"]) if swept else "row_file.any"
        reached = draw.randint(1, most) if swept else reached + 1
        fault = f"{point}:{reached}"
        died = is_killed(
            f"step {step} with fault {fault}", functools.partial(save, directory, step, fault)
        )
        killed, survived = killed + died, survived + (not died)
        if not died and not swept:
            swept, most = True, reached - 1
        newest = directory.latest()
        if newest is None:
            if not died:
                raise SystemExit("nothing was committed")
            step += 1
            continue
        if newest.step not in (last_step, step) or (newest.step != step and not died):
            raise SystemExit(f"step {newest.step} is newest after step {step}, fault {reached}")
        if newest.step == step:
            committed, last_step = after(committed, step), step
        if read(directory, newest) != committed:
            raise SystemExit(f"other rows than step {last_step}'s after {point}:{reached}")
        dense = newest.dense
        if dense is None or read_dense(directory.file(dense))["0000"].tolist() != [last_step]:
            raise SystemExit(f"another network than step {last_step}'s after {point}:{reached}")
        problems = verify(directory, directory.numbers()).problems
        if problems or newest.progress["step"] != last_step:
            raise SystemExit(f"after {point}:{reached}: {problems}, progress {newest.progress}")
        step += 1
    print(
        json.dumps({"killed": killed, "survived": survived, "steps": most, "rows": len(committed)})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
