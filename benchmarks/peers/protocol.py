"""The protocol of a measured program: one JSON object per line, on stdin and stdout.

`python -m benchmarks.peers.NAME FOLDER SETTINGS` starts a program. FOLDER comes from
`benchmarks.workload.files`, SETTINGS is a JSON object. The program prints {"versions": {…}} and
then answers requests:

    {"do": "prepare", "task": …, "kind": …, …}   builds that variant and warms it up:
                                                  {"warm_up_secs": s} or {"unsupported": reason}
    {"do": "measure", …, "secs": s}              runs the variant for about s seconds:
                                                  {"examples": n, "secs": s, …}
    {"do": "end"}                                ends

A failure answers {"error": text} and ends the program. This module uses only NumPy and the standard
library.
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
"""Rows of the table to save; each row has its weights and one accumulator per weight."""
Measure = Callable[[float], dict[str, float]]
"""Runs for about the given seconds; returns examples, secs, and further numbers of a task."""


class UnsupportedError(Exception):
    """The program does not support the request; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """A variant to measure.

    Attributes:
      task: "train", "lookup", "checkpoint" or "input".
      kind: the sparse optimizer; for a checkpoint "save", "delta" (a save after a change of one row
        in a hundred) or "restore"; for input "in order" or "shuffled".
      precision: "float32" or "bfloat16", of the dense network's products.
      batch: examples per step.
    """

    task: str
    kind: str
    precision: str = "float32"
    batch: int = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """The workload's fields, the examples, and the settings of this system."""

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
        """The input width of the top network: the pairs of vectors and the bottom output."""
        return num_interactions(len(self.cardinalities), self.dim)

    def batches(
        self, size: int
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]:
        """Yields numerics [size, n], ids [features, size] and labels [size] of each whole batch."""
        for first in range(0, len(self.labels) - size + 1, size):
            at = slice(first, first + size)
            yield self.numerics[at], np.ascontiguousarray(self.ids[:, at]), self.labels[at]


class Program(Protocol):
    """A measured program; each group of variants makes a new one, which frees the old tables."""

    def prepare(self, variant: Variant) -> Measure:
        """Builds a variant.

        Raises:
          UnsupportedError: the program does not support the variant.
        """


def num_interactions(features: int, dim: int) -> int:
    """The input width of the top network: the pairs of vectors and the bottom output."""
    return (features + 1) * features // 2 + dim


def read_work(folder: Path, settings: dict[str, Any]) -> Work:
    """Reads the work from a folder."""
    config = json.loads((folder / "workload.json").read_text())
    arrays = {k: np.load(folder / f"{k}.npy") for k in ("numerics", "ids", "labels")}
    del config["name"]
    return Work(folder=folder, settings=settings, **config, **arrays)


def stepper(
    step: Callable[[int], Any], batch: int, *, sync: Callable[[], Any] = lambda: None
) -> Measure:
    """Measures step(0), step(1), …, each of one batch; `sync` waits for the last ones."""
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
    """A table of CHECKPOINT_ROWS; each method prepares and returns the function to time."""

    def save(self) -> Callable[[], None]: ...

    def delta(self) -> Callable[[], None]: ...

    def restore(self) -> Callable[[], None]: ...


def sync(*files: Path) -> None:
    """Waits until files are on the disk, so that a save survives a power cut."""
    for file in files:
        at = os.open(file, os.O_RDONLY)
        try:
            os.fsync(at)
        finally:
            os.close(at)


def checkpointer(checkpoints: Checkpoints, kind: str) -> Measure:
    """Measures saves or restores, at least one; each row of the table counts as an example."""

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
    """Answers requests until "end".

    Args:
      make: makes the program; the earlier program is freed first.
      packages: the packages whose versions to report.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries out of the answers

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
        os._exit(0)  # does not wait for the threads of libraries
