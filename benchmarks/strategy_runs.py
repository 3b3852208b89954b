"""The runs of `benchmarks.strategies`: what is trained, on what, and what came of it.

Each run is written down when it is made, with its command line, so that the same benchmark goes on
after an interruption, and makes only the runs that are absent or were made in another way.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import child, report
from embedps.data.dataset import Dataset
from embedps.run.cluster_config import NO_BOUND

NUM_PS = 2
SAMPLE = "criteo_kaggle_12768.tsv.gz"
_MOST_UNIT_ROWS, _UNITS = 32768, 32
_GENERATED_SEED = 1
_LINE = re.compile(r"([\d,]+) examples, ([\d,]+)/s, ")
ONE, MIRRORED, BACKUP = "one process", "mirrored", "backup worker"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """A way to train.

    Attributes:
      mode: "one process", "mirrored" (replicas of one process), what --sync names, or "backup
        worker" (full, whose steps do not wait for one of the workers).
      workers: that train at the same time.
      batch: of each worker.
      slow: whether worker 0 takes twice as long.
    """

    mode: str
    workers: int
    batch: int
    slow: bool = False

    @property
    def name(self) -> str:
        """A title."""
        text = f"{self.mode}, {self.workers} x {self.batch}"
        return text + (", one slow" if self.slow else "")

    @property
    def total(self) -> int:
        """Examples of all workers' batches."""
        return self.workers * self.batch

    def flags(self) -> list[str]:
        """Gives the flags of `embedps train`."""
        flags = [f"--batch-size={self.batch}"]
        if self.mode == MIRRORED:
            flags += [f"--replicas={self.workers}", "--mirrored"]
        elif self.mode != ONE:
            flags += [f"--num-ps={NUM_PS}", f"--num-workers={self.workers}"]
            if self.mode == BACKUP:
                flags += ["--sync=full", "--on-lost-worker=continue", "--backup-workers=1"]
            elif self.mode != "none":
                flags.append(f"--sync={self.mode}")
            else:  # as stale as they come
                flags.append(f"--max-staleness-steps={NO_BOUND}")
        return flags

    @property
    def equal(self) -> Cell:
        """The way whose steps a slow worker's are twice as long as: of equal workers."""
        mode = "full" if self.mode == BACKUP else self.mode
        return dataclasses.replace(self, mode=mode, slow=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """A dataset to train on.

    Attributes:
      name: a title.
      folder: of the dataset.
      epochs: passes over it.
      paced: whether each step takes a set time, so that workers that outnumber the cores are
        equally fast.
    """

    name: str
    folder: Path
    epochs: int
    paced: bool = False

    def has(self, cell: Cell) -> bool:
        """Tells whether a way is trained on it: paced ones are of more workers than cores."""
        on_servers = cell.mode not in (ONE, MIRRORED)
        if self.paced:
            return on_servers and cell.workers > len(os.sched_getaffinity(0))
        return not cell.slow and cell.mode != BACKUP

    def unit_rows(self, cell: Cell, largest_batch: int) -> int:
        """Chooses rows per unit: whole batches of all workers, and many units if possible."""
        if self.paced:
            # Progress is shown by units, so they are short: some steps of one worker, or 4 of all
            # workers where they share a unit. With a backup worker, each end of a unit holds
            # others up by the time that the next one takes to begin.
            of_one = {"none": largest_batch, BACKUP: 2 * largest_batch}
            return of_one.get(cell.mode, 4 * largest_batch)
        rows = min(_MOST_UNIT_ROWS, Dataset.open(self.folder).split("train").rows // _UNITS)
        return max(1, rows // largest_batch) * largest_batch


def generated(work: Path, rows: int) -> Path:
    """Writes the dataset of a generated click log, unless it is there."""
    folder = work / f"generated-{rows}"
    log = folder / "logs" / "clicks.tsv.gz"
    if not (folder / "dataset" / "_dataset.json").is_file():
        log.parent.mkdir(parents=True, exist_ok=True)
        child.run(
            "embedps.pipelines.generate",
            f"--rows={rows}",
            f"--seed={_GENERATED_SEED}",
            f"--output={log}",
        )
        child.run(
            "embedps.pipelines.criteo",
            f"--input={log}",
            f"--output={folder / 'dataset'}",
            "--num-shards=8",
        )
    return folder / "dataset"


def sample(work: Path, samples: Path) -> Path:
    """Writes the dataset of the real sample, unless it is there."""
    folder = work / "sample"
    if not (folder / "_dataset.json").is_file():
        child.run(
            "embedps.pipelines.criteo",
            f"--input={samples / SAMPLE}",
            f"--output={folder}",
            "--num-shards=1",
        )
    return folder


class Runs:
    """Makes runs, and keeps what came of them in files."""

    def __init__(self, work: Path, *, pace_ms: float, largest_batch: int, busy: bool) -> None:
        """Notes how to make runs.

        Args:
          work: the folder of the files.
          pace_ms: least time of a paced step, times the number of workers.
          largest_batch: of all workers together.
          busy: the machine has other work, so the speeds of new runs are not kept.
        """
        self._work, self._pace_ms, self._largest_batch = work, pace_ms, largest_batch
        self._busy = busy

    def pace_ms(self, data: Data, cell: Cell) -> float:
        """Gives the least time of a step of each worker."""
        return self._pace_ms * cell.workers if data.paced else 0.0

    def flags(self, data: Data, cell: Cell, seed: int) -> list[str]:
        """Gives the flags of a run, but for paths and the pace of a slow worker."""
        return [
            *("--model=benchmarks.paced_dlrm", f"--seed={seed}", f"--epochs={data.epochs}"),
            *(
                f"--unit-rows={data.unit_rows(cell, self._largest_batch)}",
                f"--pace-ms={self.pace_ms(data, cell):g}",
            ),
            *cell.flags(),
        ]

    def known(self, data: Data, cell: Cell, seed: int) -> dict[str, Any] | None:
        """Reads what came of a run; None if it was not made yet, or in another way."""
        path = self._path(data, cell, seed)
        if not path.is_file():
            return None
        found: dict[str, Any] = json.loads(path.read_text())
        return found if found["flags"] == self.flags(data, cell, seed) else None

    def make(
        self, data: Data, cell: Cell, seed: int, equal: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Trains and scores.

        Args:
          data: to train on.
          cell: how.
          seed: of the shuffles and of the network.
          equal: with a slow worker, what came of the run of equal workers.

        Raises:
          ChildError: the run failed.
        """
        flags = self.flags(data, cell, seed)
        more = []
        if equal is not None:
            step_ms = 1000 * cell.total / equal["examples_per_sec"]
            more = [f"--first-pace-ms={self.pace_ms(data, cell) + step_ms:.1f}"]
        load = os.getloadavg()[0]
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=self._work) as folder:
            output = child.run(
                "embedps.train",
                *(f"--data={data.folder}", f"--model-dir={folder}/model", *flags, *more),
                *("--eval=inline", "--log-secs=1", "--stats-secs=0", "--delta-secs=3600"),
            )
            summary = json.loads((Path(folder) / "model" / "summary.json").read_text())
        rate = None if self._busy else round(speed(output) or summary["examples_per_sec"], 1)
        found = {
            "auc": summary["evaluation"]["auc"],
            "examples_per_sec": rate,
            "secs": round(time.monotonic() - began, 1),
            "load_before": round(load, 2),
            "more_flags": more,
            "commit": report.environment()["commit"],
            "flags": flags,
        }
        path = self._path(data, cell, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
        return found

    def _path(self, data: Data, cell: Cell, seed: int) -> Path:
        name = re.sub(r"\W+", "-", f"{data.name}, {cell.name}, seed {seed}")
        return self._work / "runs" / f"{name}.json"


def speed(output: str) -> float:
    """Reads the speed from progress lines: the slope from a half to 0.85 of all examples.

    The first half has the tracing in it, and the first touch of most rows. In the last part, one
    worker after another has no more units, and one that is slow ends alone. A line counts whole
    units, and equal workers end theirs together: a line through all points does not depend on
    where such a burst is cut. It is 0 if the run was too short for such lines.
    """
    lines = [tuple(int(n.replace(",", "")) for n in found) for found in _LINE.findall(output)]
    secs, points = 0.0, []
    for (before, _), (after, rate) in zip([(0, 0), *lines], lines, strict=False):
        if rate and after > before:
            secs += (after - before) / rate
            if lines[-1][0] / 2 <= after <= 0.85 * lines[-1][0]:
                points.append((secs, after))
    if len(points) < 2:
        return 0.0
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def groups(workers: Sequence[int], *, total: int, batch: int) -> list[list[Cell]]:
    """Lists the ways to train: groups of ways to compare, the most telling first.

    Args:
      workers: numbers of workers.
      total: the batch of all workers, which is the same for each number of them.
      batch: the batch per worker, which is the same for each number of them.
    """
    order = sorted(workers, key=lambda n: (abs(n - 4), n))
    listed: list[list[Cell]] = []
    seen: set[Cell] = set()
    for n, b in dict.fromkeys((each, b) for each in order for b in (total // each, batch)):
        modes = ("none", "full", "dense")
        group = [Cell(mode=ONE, workers=1, batch=n * b)]
        group += [Cell(mode=mode, workers=n, batch=b) for mode in modes]
        if n == 2:
            group.append(Cell(mode=MIRRORED, workers=n, batch=b))
        if n == max(order) and b == batch:
            group.append(Cell(mode=BACKUP, workers=n, batch=b))
            slow = (*modes, BACKUP)
            group += [Cell(mode=mode, workers=n, batch=b, slow=True) for mode in slow]
        listed.append([cell for cell in group if cell not in seen])
        seen |= set(group)
    return listed
