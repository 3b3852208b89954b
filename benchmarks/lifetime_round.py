"""Trains one round of a run of `benchmarks.lifetime`: from its last checkpoint up to a unit.

It uses `embedps.Trainer` as any program would. It looks at the tables after each unit, and ends the
run as an operator would: by SIGTERM.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import embedps  # noqa: F401  before TensorFlow: it has it start quietly

# isort: split
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks import report
from embedps.errors import EmbedpsError
from embedps.models import dlrm, fm
from embedps.run.config import TrainConfig
from embedps.scheduling.ledger import Unit
from embedps.splitmix import mix
from embedps.training.trainer import Trainer

EMBEDDING_DIM = 8
MODELS = {"fm": (fm, EMBEDDING_DIM + 1, 0.01), "dlrm": (dlrm, EMBEDDING_DIM, 0.001)}
"""By name: the module, the floats of a row, and the network's learning rate."""
_UNITS_AHEAD = 2  # one running, one queued: both finish after the signal
_NO_SAVE_SECS = 1e6  # saves go by steps, so that each run has equally many


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """What to train.

    Attributes:
      model: a key of MODELS.
      data: directory of the dataset.
      model_dir: of the run.
      policies: options of the model's tables.
      num_shards: of each table.
      until_unit: the round ends when so many units are done.
      batch_size: examples per step.
      unit_rows: examples per unit.
      delta_steps: steps from one save to the next.
    """

    model: str
    data: str
    model_dir: str
    policies: dict[str, Any]
    num_shards: int
    until_unit: int
    batch_size: int
    unit_rows: int
    delta_steps: int

    def trainer(self) -> Trainer:
        """Makes the trainer, which restores the run's last checkpoint."""
        module, _, dense_rate = MODELS[self.model]
        config = TrainConfig.from_options(
            model=self.model,
            data=self.data,
            model_dir=self.model_dir,
            shuffle=False,
            batch_size=self.batch_size,
            unit_rows=self.unit_rows,
            num_shards=self.num_shards,
            sparse_learning_rate=0.1,
            dense_learning_rate=dense_rate,
            delta_secs=_NO_SAVE_SECS,
            delta_steps=self.delta_steps,
            max_secs_without_checkpoint=_NO_SAVE_SECS,
            grace_secs=3600.0,
            log_secs=600.0,
            eval="none",
        )
        options = {"embedding_dim": EMBEDDING_DIM, **self.policies}
        return Trainer.from_config(config, module.Config(**options))


@dataclasses.dataclass(frozen=True)
class Look:
    """What a run has and has used after a number of units."""

    units: int
    bytes: int
    rows: int
    evicted: int
    counters: int
    resident_bytes: int
    cpu_secs: float
    wall_secs: float


class Watcher:
    """Looks at a run after each of its units, and tells it to end."""

    def __init__(self, trainer: Trainer, until_unit: int) -> None:
        self.looks: list[Look] = []
        self._trainer = trainer
        self._ledger = trainer.ledger
        self._last = until_unit if until_unit < trainer.ledger.num_units else None
        self._told = False

    def __enter__(self) -> Watcher:
        """Has the ledger call it, and hand out no unit after the last one of the round."""
        done, pause_at = self._ledger.done, self._ledger.pause_at

        def look_after(unit: Unit) -> None:
            done(unit)
            self._look()

        def pause_at_the_last(position: float) -> None:
            pause_at(position if self._last is None else min(position, self._last))

        vars(self._ledger).update(done=look_after, pause_at=pause_at_the_last)
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("done", "pause_at"):
            del vars(self._ledger)[name]

    def _look(self) -> None:
        """Looks at the run; tells it to end when what is under way completes the round."""
        done = self._ledger.num_done
        self.looks.append(look(self._trainer, done))
        if self._last is not None and not self._told and done >= self._last - _UNITS_AHEAD:
            self._told = True
            os.kill(os.getpid(), signal.SIGTERM)


def look(trainer: Trainer, units: int) -> Look:
    """Reads the counts of a run's tables; those of the evicted rows are of this process."""
    stats = trainer.collection.stats()
    return Look(
        units=units,
        bytes=stats.memory_bytes,
        rows=stats.rows["item"],
        evicted=sum(trainer.collection.eviction_stats()["item"].values()),
        counters=trainer.collection.admission_stats()["item"].counters,
        resident_bytes=report.anonymous_bytes(),
        cpu_secs=time.process_time(),
        wall_secs=time.monotonic(),
    )


def run_round(asked: Round) -> dict[str, Any]:
    """Trains a round in this process; returns what it did."""
    trainer = asked.trainer()
    restored, first = look(trainer, trainer.ledger.num_done), trainer.ledger.rows_done()
    with Watcher(trainer, asked.until_unit) as watcher:
        result = trainer.fit()
    looks = watcher.looks
    # Before the first unit its function is made. After the last whole one the run ends.
    whole = [each for each in looks if each.units <= asked.until_unit - _UNITS_AHEAD]
    begin, end = whole[0], whole[-1]
    return {
        "units": result.units.done,
        "repeated_units": result.units.repeated,
        "examples": trainer.ledger.rows_done() - first,
        "rows_restored": restored.rows,
        "rows": result.summary["tables"]["item"],
        "memory_bytes": result.summary["tables_memory_bytes"],
        "evicted": result.summary["evicted"]["item"],
        "refused": trainer.collection.admission_stats()["item"].refused,
        "auc": result.summary["training"]["auc"],
        "logloss": result.summary["training"]["logloss"],
        "timed": {
            "examples": (end.units - begin.units) * asked.unit_rows,
            "cpu_secs": end.cpu_secs - begin.cpu_secs,
            "wall_secs": end.wall_secs - begin.wall_secs,
        },
        "looks": [dataclasses.asdict(each) for each in looks],
    }


def digest(asked: Round) -> dict[str, Any]:
    """Restores a run's last checkpoint, and sums up all rows and counters in an order-free hash."""
    trainer = asked.trainer()
    total, records = 0, 0
    try:
        with tempfile.TemporaryDirectory(prefix="embedps-lifetime-") as folder:
            trainer.collection.files.write("copy", folder, since={})
            for path in sorted(Path(folder).rglob("*.arrow")):
                with pa.memory_map(str(path)) as file:
                    reader = pa.ipc.open_file(file)
                    for number in range(reader.num_record_batches):
                        batch = reader.get_batch(number)
                        total += hash_records(batch)
                        records += batch.num_rows
    finally:
        trainer.close()
    return {"digest": f"{total % 2**64:016x}", "records": records}


def hash_records(batch: pa.RecordBatch) -> int:
    """Sums up a hash of each record: of all its columns, bit for bit."""
    hashes = np.zeros(batch.num_rows, np.uint64)
    for name in sorted(batch.schema.names):
        for words in _words(batch[name]).T:
            hashes = mix(hashes + words + np.uint64(1))
    return int(hashes.sum(dtype=np.uint64))


def _words(column: pa.Array) -> npt.NDArray[np.uint64]:
    """Gives the bits of each value as columns of numbers."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type):
        codes = {text: int.from_bytes(text.encode()[:8], "big") for text in set(column.to_pylist())}
        return np.array([[codes[text]] for text in column.to_pylist()], np.uint64)
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
        flat = np.asarray(column.flatten())
    else:
        width, flat = 1, np.asarray(column)
    if flat.dtype == bool:
        flat = flat.astype(np.uint8)
    return np.asarray(flat.view(f"u{flat.itemsize}").reshape(-1, width), np.uint64)


def in_a_process(task: str, asked: Round) -> dict[str, Any]:
    """Runs a task, a key of TASKS, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.lifetime_round", task],
        input=json.dumps(dataclasses.asdict(asked)),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise EmbedpsError(f"the {task} of {asked.model_dir} failed: see above")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


TASKS = {"train": run_round, "digest": digest}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](Round(**json.load(sys.stdin)))))
