"""Whole runs of workers in step, one after the other on a local cluster, for test_sync_runs.py.

A program of its own: TensorFlow never leaves a cluster that it has connected to.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import row_visits
from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset
from embedps.engine import network_check
from embedps.engine.recommender import Recommender
from embedps.scheduling import scheduler
from embedps.scheduling.watch_ledger import WatchLedger
from embedps.tables import FeatureSpec, TableSpec
from embedps.training.callbacks import Callback, RunControl
from embedps.training.trainer import Trainer
from tests import every_column, tagged, two_tasks
from tests.builders import SumModel, dense_of, make_dlrm, make_trainer, write_dataset
from tests.training.same_bits import FIELDS, assert_same_checkpoint
from tests.training.tiered_model import WIDE, tiered

SERVERS = WORKERS = 2
SHORT: dict[str, Any] = {**FIELDS, "batch_size": 32, "unit_rows": 200, "epochs": 2}
"""Units end with steps of one part, and with short batches."""


class Noted(Callback):
    """A user's callback: notes the scores, lowers the rates, and may end the run."""

    def __init__(self, stop_at: int = 0) -> None:
        self._stop_at = stop_at
        self.steps: list[int] = []
        self.factors: list[float] = []

    def on_evaluation(self, run: RunControl, entry: Mapping[str, Any]) -> None:
        self.steps.append(entry["step"])
        run.scale_learning_rates(0.5)
        self.factors.append(run.rate_factor)
        if len(self.steps) == self._stop_at:
            run.stop("enough")


class Attention(SumModel):
    """Attends to the rows of the last tags, which are padded."""

    def __init__(self) -> None:
        tags = FeatureSpec(
            name="tags",
            table=TableSpec(name="tags", embedding_dim=4),
            ragged=True,
            combiner="none",
            max_length=3,
        )
        super().__init__(
            (FeatureSpec(name="C1", table=TableSpec(name="C1", embedding_dim=3)), tags), ()
        )
        self.attend = tf.keras.layers.MultiHeadAttention(2, 3)

    def rows(self, features: Mapping[str, Any]) -> tf.Tensor:
        found = self.embeddings(features)
        attended = tf.reduce_sum(self.attend(found["tags"], found["tags"]), axis=1)
        return tf.concat([found["C1"], attended], axis=1)


class Cases:
    """Models whose runs in step have the bits of replicas: weights, several labels, sequences.

    In "no tags", at first no batch has an id, then that of one rank has none.
    """

    def __init__(self, directory: Path) -> None:
        self.every = every_column.write_dataset(directory / "every", train=600, evaluation=100)
        self.clicks = write_dataset(
            directory / "clicks", train=(400, 230), evaluation=(200,), whole=True
        )
        self.visits = row_visits.write_dataset(
            directory / "visits", train=(400, 230), evaluation=(100,)
        )
        bare = write_dataset(
            directory / "bare",
            train=(400, 230),
            evaluation=(100,),
            untagged=[*range(200), *range(400, 500)],
            whole=True,
        )
        self.models: dict[str, tuple[Recommender, Dataset, dict[str, Any]]] = {
            "weights": (Recommender(build=every_column.EveryColumn), self.every, {}),
            "sequences": (Recommender(build=Attention), self.clicks, {}),
            "no tags": (tagged.make(tagged.Config(only_tags=True), bare), bare, {}),
            "rounded": (
                make_dlrm(
                    self.clicks,
                    compute_dtype="bfloat16",
                    row_dtype="bfloat16",
                    wire_dtype="float32",
                ),
                self.clicks,
                {},
            ),
            "normalized": (
                two_tasks.make(two_tasks.Config(dropout=0.0), self.visits),
                self.visits,
                {"dense_optimizer": "adamw"},
            ),
        }

    def train(self, name: str, model_dir: Path, cluster: Cluster, **fields: Any) -> Trainer:
        recommender, dataset, own = self.models[name]
        trainer = make_trainer(
            dataset,
            model_dir,
            recommender=recommender,
            cluster=cluster,
            **(SHORT | own | fields),
        )
        trainer.fit()
        return trainer


def check_bits(cases: Cases, cluster: Cluster, directory: Path) -> None:
    """Workers in step have the bits of replicas, which were trained before.

    So has a group of all workers, whether its size is said or not.
    """
    for size, name in zip((WORKERS, 0, 0, 0, 0), cases.models, strict=True):
        into = directory / f"{name}-in-step"
        cases.train(name, into, cluster, sync="full", sync_group_size=size)
        assert_same_checkpoint(directory / f"{name}-in-step", directory / f"{name}-replicas")
        print(f"{name}: the same bits")


def check_dropout(cases: Cases, cluster: Cluster, directory: Path) -> None:
    """With dropout, runs differ: each worker draws masks of its own."""
    model = two_tasks.make(two_tasks.Config(dropout=0.5), cases.visits)
    found = []
    for i in range(2):
        trainer = make_trainer(
            cases.visits,
            directory / f"dropout-{i}",
            recommender=model,
            cluster=cluster,
            sync="full",
            **SHORT,
        )
        trainer.fit()
        found.append(dense_of(directory / f"dropout-{i}"))
    differ = [name for name, value in found[0].items() if not np.array_equal(value, found[1][name])]
    assert any("kernel" in name for name in differ), differ
    print("dropout: other masks in each run")


def check_callbacks_and_policies(cases: Cases, cluster: Cluster, directory: Path) -> None:
    """Callbacks get each score once, lower all workers' rates and end the run; limits hold."""
    for sync in ("dense", "full"):
        noted = Noted(stop_at=3)
        model = make_dlrm(cases.clicks, min_count=2, max_table_rows=60, row_ttl_steps=30)
        trainer = make_trainer(
            cases.clicks,
            directory / f"limits-{sync}",
            recommender=model,
            cluster=cluster,
            callbacks=[noted],
            sync=sync,
            eval_units=2,
            max_server_bytes=3_000_000,
            **(SHORT | {"epochs": 50}),
        )
        summary = trainer.fit().summary
        assert noted.factors[:3] == [0.5, 0.25, 0.125], noted.factors
        assert noted.steps == sorted(set(noted.steps)), noted.steps
        assert summary["finished"]
        assert summary["units"]["done"] < summary["units"]["total"]
        assert summary["units"]["repeated"] == 0
        stats = trainer.collection.stats()
        assert max(stats.rows.values()) <= 60, stats.rows
        assert stats.memory_bytes <= SERVERS * 3_000_000
        assert any(s.refused for s in trainer.collection.admission_stats().values())
        print(f"{sync}: scores at steps {noted.steps}, rows {stats.rows}")


def check_modes(cases: Cases, cluster: Cluster, directory: Path) -> None:
    """A run resumes in one mode after the other, with its scores, rates and callbacks."""
    goes_on = {"on_lost_worker": "continue", "backup_workers": 1}
    modes: list[dict[str, Any]] = [
        {"sync": "none"},
        {"sync": "full"},
        {"sync": "dense"},
        {"sync": "full", **goes_on},
        {"sync": "none"},
        {"sync": "dense", **goes_on},
    ]
    rows, steps = cases.clicks.split("train").rows, list[int]()

    def resume(epochs: int, noted: Noted, **mode: Any) -> dict[str, Any]:
        return (
            make_trainer(
                cases.clicks,
                directory / "modes",
                cluster=cluster,
                callbacks=[noted],
                eval_units=2,
                **(SHORT | {"epochs": epochs} | mode),
            )
            .fit()
            .summary
        )

    for epochs, mode in enumerate(modes, 1):
        noted = Noted()
        summary = resume(epochs, noted, **mode)
        assert noted.steps[: len(steps)] == steps, (noted.steps, steps)  # those of before, again
        assert len(noted.steps) == 2 * epochs, noted.steps
        steps = noted.steps
        assert steps == sorted(set(steps)), steps
        assert summary["learning_rate_factor"] == 0.5 ** len(steps)
        assert summary["sync"]["mode"] == mode["sync"]
        assert summary["examples"] == epochs * rows
        assert summary["units"]["done"] == summary["units"]["attempts"]
        assert summary["units"]["repeated"] == 0
        assert summary["evaluation"]["step"] == steps[-1]
    noted = Noted(stop_at=len(steps) + 1)
    assert resume(50, noted, sync="full")["stopped_early"] == "enough"
    assert len(noted.steps) == len(steps) + 1
    again = Noted(stop_at=len(steps) + 1)
    summary = resume(50, again, sync="dense")  # what is stopped stays so in another mode
    assert summary["finished"]
    assert again.steps == noted.steps
    print(f"modes: scores at steps {noted.steps}")


def check_large_variables(cases: Cases, cluster: Cluster, directory: Path) -> None:
    """A variable that a run on servers should not have is told when it begins."""
    whole, network_check.LARGE_BYTES = network_check.LARGE_BYTES, 16
    try:
        trainer = cases.train("sequences", directory / "large", cluster, sync="full")
    finally:
        network_check.LARGE_BYTES = whole
    told = [line for line in trainer._setup.changes if "MiB on one parameter server" in line]
    large = [v for v in trainer._setup.model.variables if v.shape.num_elements() >= 4]
    assert len(told) == len(large) > 0, told


def end_after(trainer: Trainer, ledger: WatchLedger, rows: int, over: threading.Event) -> None:
    """Ends a run in good order, as Ctrl-C does, once so many rows are trained."""
    while ledger.rows_done() < rows and not over.wait(0.05):
        pass
    trainer._notices.end()


def check_watch(cases: Cases, cluster: Cluster, directory: Path) -> None:
    """A file that arrives is trained by all workers, each row once."""
    folder = directory / "arrivals"
    folder.mkdir()
    trainer = make_trainer(
        cases.clicks,
        directory / "watch",
        cluster=cluster,
        sync="full",
        watch=str(folder),
        **(SHORT | {"epochs": 1, "eval": "none"}),
    )
    ledger = trainer.ledger
    assert isinstance(ledger, WatchLedger)
    shutil.copy(cases.clicks.paths("train")[0], folder / ".whole")  # 400 rows
    os.rename(folder / ".whole", folder / "arrived.parquet")
    rows, over = cases.clicks.split("train").rows + 400, threading.Event()
    ending = threading.Thread(target=end_after, args=(trainer, ledger, rows, over))
    ending.start()
    try:
        trainer.fit()
    finally:
        over.set()
        ending.join()
    assert ledger.rows_done() == rows
    assert ledger.num_repeated == 0
    print(f"watch: {rows} rows")


def check_tier(cluster: Cluster, directory: Path) -> None:
    """A run whose coldest rows are on the servers' disks has the bits of one in memory."""
    dataset = write_dataset(
        directory / "rows", train=(7000,), evaluation=(100,), row_group_rows=1000, whole=True
    )
    # A server has one shard here: half of the memory of two.
    memory = tiered(directory / "spill")
    memory["max_memory_bytes"] //= 2
    for name, fields in (("in-memory", {}), ("on-disk", memory)):
        trainer = make_trainer(
            dataset,
            directory / name,
            recommender=WIDE,
            cluster=cluster,
            sync="full",
            **(SHORT | {"unit_rows": 1000, "batch_size": 200} | fields),
        )
        trainer.fit()
    assert_same_checkpoint(directory / "in-memory", directory / "on-disk")
    stats = trainer.collection.tier_stats()
    assert stats.read > 1000, stats
    print(f"rows on disk: {stats.rows_on_disk}")


def main(directory: Path) -> None:
    """Checks all of this."""
    scheduler._STRAGGLER_SECS = 3600.0  # a slow unit at the end gets no second attempt
    cases = Cases(directory)
    here = EmbeddedCluster(num_shards=SERVERS)
    for name in cases.models:
        cases.train(name, directory / f"{name}-replicas", here, replicas=WORKERS)
    with LocalCluster(num_ps=SERVERS, num_workers=WORKERS, log_dir=directory / "logs") as cluster:
        check_bits(cases, cluster, directory)
        check_dropout(cases, cluster, directory)
        check_callbacks_and_policies(cases, cluster, directory)
        check_modes(cases, cluster, directory)
        check_watch(cases, cluster, directory)
        check_large_variables(cases, cluster, directory)
        check_tier(cluster, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
