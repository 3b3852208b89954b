"""Runs random traces, and kills them at seeded steps on the disk.

A program of its own, which forks one process after the other: it imports TensorFlow and runs
nothing in it, so that each of those starts with the library loaded and no threads. A process runs
traces until it is killed, by SIGKILL where `io` or the kernels write; the next goes on with the
trace that was under way, from what the disk holds. Prints a JSON of counts.

    python -m tests.tables.oracle_program FIRST_SEED NUM_TRACES
"""

import collections
import functools
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import embedps  # noqa: F401  chooses Keras 2 before TensorFlow's import
from embedps import kernels
from tests.forks import arm, is_killed
from tests.tables.oracle_declarations import crowded
from tests.tables.oracle_store import drop_stores
from tests.tables.oracle_trace import Trace

TRACES_PER_PROCESS = 40
MOST_STEPS = 1200  # on the disk until a process is killed: those of some 30 traces


def live(seeds: Sequence[int], folder: Path, fault: str) -> None:
    """Runs traces in this process until the fault."""
    arm(fault)
    for seed in seeds:
        trace = Trace(seed, folder / str(seed))
        try:
            trace.run()
        except Exception as error:
            raise AssertionError(f"trace {seed}") from error
        with (folder / "done").open("a") as done:
            done.write(json.dumps({"seed": seed, "did": trace.did}) + "\n")
        shutil.rmtree(trace.folder)
        drop_stores()


def main(first: int, num_traces: int) -> None:
    """Runs the traces of so many seeds."""
    kernels.load()
    crowded()  # once for all processes
    draw = random.Random(first)
    left = list(range(first, first + num_traces))
    killed = 0
    memory = Path("/dev/shm")  # a file there is written without a wait for a disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        folder = Path(name)
        while left:
            fault = f"{draw.choice(['io', 'row_file'])}.any:{draw.randint(1, MOST_STEPS)}"
            seeds = left[:TRACES_PER_PROCESS]
            killed += is_killed(
                f"a process of traces from {seeds[0]} on",
                functools.partial(live, seeds, folder, fault),
            )
            done = {each["seed"] for each in _done(folder)}
            left = [seed for seed in left if seed not in done]
        did = sum(
            (collections.Counter(each["did"]) for each in _done(folder)), collections.Counter()
        )
    print(json.dumps({"traces": num_traces, "killed": killed, "did": did}))


def _done(folder: Path) -> list[dict]:
    path = folder / "done"
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
