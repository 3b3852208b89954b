"""What a measured program is told and says: a JSON object a line, on stdin and stdout.

Started as `python -m benchmarks.peers.NAME FOLDER SETTINGS`, the folder that
`benchmarks.workload.files` makes and a JSON object, it says {"versions": {…}} and then answers:

    {"do": "prepare", "task": …, "kind": …, …}   builds that variant and warms it up:
                                                  {"warm_up_secs": s} or {"unsupported": why}
    {"do": "measure", …, "secs": s}              runs the variant for about s seconds:
                                                  {"examples": n, "secs": s, …}
    {"do": "end"}                                ends

A failure is {"error": text}, and the end. NumPy and the standard library only.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.metadata
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

WARM_UP_SECS = 1.0
CHECKPOINT_ROWS = 2_000_000
"""Of the table that is saved: each row its weights and an accumulator a weight."""
Measure = Callable[[float], dict[str, float]]
"""Runs for about so many seconds; says examples, secs, and what else a task wants told."""


class UnsupportedError(Exception):
    """What is asked for, the program cannot do; the text says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """What is measured.

    Attributes:
      task: "train", "lookup", "checkpoint" or "input".
      kind: of the sparse optimizer; of a checkpoint "save", "delta" (a save after one row in a
        hundred has changed) or "restore"; of input "in order" or "shuffled".
      precision: of the dense network's products, "float32" or "bfloat16".
      batch: examples a step.
    """

    task: str
    kind: str
    precision: str = "float32"
    batch: int = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """The workload's fields, the examples, and the settings of this entrant."""

    folder: Path
    cardinalities: list[int]
    dim: int
    bottom_mlp: list[int]
    top_mlp: list[int]
    num_numerics: int
    settings: dict[str, Any]
    numerics: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float32]

    @property
    def num_interactions(self) -> int:
        """Width of the top network's input: the pairs of vectors, and the bottom network's."""
        return num_interactions(len(self.cardinalities), self.dim)

    def batches(
        self, size: int
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]:
        """Gives numerics [size, n], ids [features, size] and labels [size] of each whole batch."""
        for first in range(0, len(self.labels) - size + 1, size):
            at = slice(first, first + size)
            yield self.numerics[at], np.ascontiguousarray(self.ids[:, at]), self.labels[at]


class Program(Protocol):
    """A measured program; made anew for each group of variants, so that it can let go of tables."""

    def prepare(self, variant: Variant) -> Measure:
        """Builds a variant.

        Raises:
          UnsupportedError: it has no such thing.
        """


def num_interactions(features: int, dim: int) -> int:
    """Width of the top network's input: the pairs of vectors, and the bottom network's."""
    return (features + 1) * features // 2 + dim


def read_work(folder: Path, settings: dict[str, Any]) -> Work:
    """The work in a folder."""
    config = json.loads((folder / "workload.json").read_text())
    arrays = {k: np.load(folder / f"{k}.npy") for k in ("numerics", "ids", "labels")}
    del config["name"]
    return Work(folder=folder, settings=settings, **config, **arrays)


def stepper(
    step: Callable[[int], Any], batch: int, *, sync: Callable[[], Any] = lambda: None
) -> Measure:
    """Measures step(0), step(1), …, each of one batch, and what is left in flight at the end."""
    number = 0

    def measure(secs: float) -> dict[str, float]:
        nonlocal number
        first, began = number, time.perf_counter()
        while time.perf_counter() - began < secs:
            step(number)
            number += 1
        sync()
        return {
            "examples": (number - first) * batch,
            "secs": time.perf_counter() - began,
        }

    return measure


class Checkpoints(Protocol):
    """A table of CHECKPOINT_ROWS; each method prepares and returns what is timed."""

    def save(self) -> Callable[[], None]: ...

    def delta(self) -> Callable[[], None]: ...

    def restore(self) -> Callable[[], None]: ...


def sync(*files: Path) -> None:
    """Waits until files are on the disk: a save that is lost with the power is none."""
    for file in files:
        at = os.open(file, os.O_RDONLY)
        try:
            os.fsync(at)
        finally:
            os.close(at)


def checkpointer(checkpoints: Checkpoints, kind: str) -> Measure:
    """Measures saves or restores, one at least; a row of the table is an example."""

    def measure(secs: float) -> dict[str, float]:
        took, times = 0.0, 0
        while not times or took < secs:
            act = getattr(checkpoints, kind)()
            began = time.perf_counter()
            act()
            took += time.perf_counter() - began
            times += 1
        return {"examples": times * CHECKPOINT_ROWS, "secs": took}

    return measure


def serve(make: Callable[[Work], Program], packages: Sequence[str]) -> None:
    """Answers until told to end.

    Args:
      make: makes the program; what an earlier one held is let go of first.
      packages: whose versions are told.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        work = read_work(Path(sys.argv[1]), json.loads(sys.argv[2]))
        versions = {name: importlib.metadata.version(name) for name in packages}
        say({"versions": {"python": platform.python_version(), **versions}})
        program: Program | None = None
        group = None
        measures: dict[Variant, Measure] = {}
        for line in sys.stdin:
            asked = json.loads(line)
            if asked.pop("do") == "end":
                break
            secs = asked.pop("secs", None)
            wanted = asked.pop("group", group)
            variant = Variant(**asked)
            if secs is not None:
                say(measures[variant](secs))
                continue
            if program is None or wanted != group:
                measures.clear()
                program = None
                gc.collect()
                program, group = make(work), wanted
            began = time.perf_counter()
            try:
                measures[variant] = program.prepare(variant)
                measures[variant](0.0)
                measures[variant](WARM_UP_SECS)
            except UnsupportedError as reason:
                say({"unsupported": str(reason)})
            else:
                say({"warm_up_secs": round(time.perf_counter() - began, 2)})
    except Exception as error:
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {error}"[:500]})
    finally:
        answers.flush()
        os._exit(0)  # libraries' threads are no news
