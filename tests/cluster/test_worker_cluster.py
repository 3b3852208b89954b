"""Workers of TF_CONFIG train in step as one process does, and go on together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from tests import forked, frozen, tagged
from tests.builders import (
    ROOT,
    TINY_DLRM_FLAGS,
    dataset_fixture,
    latest,
    make_trainer,
    write_dataset,
)
from tests.checkpoint.readers import read_table
from tests.tables.builders import rows_of

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

_FLAGS = ("--batch-size=64", "--unit-rows=128", "--eval=none", "--wait-secs=200")
_DLRM = ("--model=dlrm", *TINY_DLRM_FLAGS)
_SECS = 300.0


dataset = dataset_fixture()


class Workers(list[subprocess.Popen[str]]):
    """Workers by rank, with what they print in model_dir.N."""

    def __init__(self, command: Sequence[str], model_dir: Path, addresses: Sequence[str]) -> None:
        self._command, self._model_dir, self._addresses = command, model_dir, addresses
        super().__init__(map(self._started, range(len(addresses))))

    def start(self, rank: int) -> None:
        """Starts one again."""
        self[rank] = self._started(rank)

    def _started(self, rank: int) -> subprocess.Popen[str]:
        task = {"cluster": {"worker": self._addresses}, "task": {"type": "worker", "index": rank}}
        with open(f"{self._model_dir}.{rank}", "a") as output:
            return forked.start(
                self._command,
                cwd=ROOT,
                env=os.environ | {"TF_CONFIG": json.dumps(task)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )


@contextlib.contextmanager
def started_workers(
    dataset: Dataset, model_dir: Path, flags: Sequence[str] = (), model: Sequence[str] = _DLRM
) -> Iterator[Workers]:
    """Two workers; ends them if they have not ended."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(2)]
        for probe in probes:
            probe.bind(("localhost", 0))
        addresses = [f"localhost:{probe.getsockname()[1]}" for probe in probes]
    command = ["-m", "embedps", "train", *model, *_FLAGS, *flags]
    command += [f"--data={dataset.directory}", f"--model-dir={model_dir}"]
    workers = Workers(command, model_dir, addresses)
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def printed(model_dir: Path) -> list[str]:
    return [Path(f"{model_dir}.{index}").read_text() for index in range(2)]


def test_two_workers_give_the_bits_of_one_process_with_two_replicas(
    dataset: Dataset, tmp_path: Path
) -> None:
    """The unit's last batches are short, so the workers' parts weigh differently."""
    check_bits(dataset, tmp_path)


@pytest.mark.parametrize(
    ("rows", "batch_size", "unit_rows"),
    [((150,), 64, 150), ((50,), 64, 128), ((7, 1), 1, 3)],
    ids=["a short batch of the first worker", "no row for the second worker", "a row each"],
)
def test_workers_with_few_rows_give_the_bits_of_replicas(
    tmp_path: Path, rows: tuple[int, ...], batch_size: int, unit_rows: int
) -> None:
    few = write_dataset(tmp_path / "set", train=rows, evaluation=(1,))
    check_bits(few, tmp_path, batch_size=batch_size, unit_rows=unit_rows)


@pytest.mark.parametrize("only_tags", [False, True])
def test_workers_without_ids_of_a_table_give_the_bits_of_replicas(
    tmp_path: Path, only_tags: bool
) -> None:
    """First neither worker has an id, then the first has none, and then the second."""
    untagged = [*range(192), *range(320, 384)]
    bare = write_dataset(
        tmp_path / "set", train=(600,), evaluation=(50,), untagged=untagged, whole=True
    )
    check_bits(
        bare,
        tmp_path,
        model=("--model=tests.tagged", *(["--only-tags"] if only_tags else [])),
        recommender=tagged.make(tagged.Config(only_tags=only_tags), bare),
    )


@pytest.mark.parametrize("by", ["layer", "tables"])
def test_rows_of_a_frozen_layer_or_table_stay(dataset: Dataset, tmp_path: Path, by: str) -> None:
    model_dir = tmp_path / "model"
    learning = frozen.make(frozen.Config(learns=True), dataset)
    make_trainer(dataset, model_dir, recommender=learning, batch_size=64, unit_rows=128).fit()
    before = read_rows(model_dir)
    with started_workers(
        dataset, model_dir, ("--epochs=2",), ("--model=tests.frozen", f"--by={by}")
    ) as workers:
        codes = [worker.wait(_SECS) for worker in workers]
    assert codes == [0, 0], printed(model_dir)
    assert latest(model_dir).progress["examples"] == 2 * dataset.split("train").rows
    assert read_rows(model_dir) == before


def read_rows(model_dir: Path) -> dict[str, Any]:
    manifest, directory = latest(model_dir), CheckpointDirectory(model_dir)
    return {n: read_table(directory, manifest, n).to_pydict() for n in ("C1", "C2")}


def check_bits(
    dataset: Dataset,
    tmp_path: Path,
    *,
    model: Sequence[str] = _DLRM,
    recommender: Recommender | None = None,
    batch_size: int = 64,
    unit_rows: int = 128,
) -> None:
    """Trains two workers, and two replicas of one process; compares all that comes of them."""
    model_dir = tmp_path / "workers"
    flags = (f"--batch-size={batch_size}", f"--unit-rows={unit_rows}", "--eval=inline")
    with started_workers(dataset, model_dir, flags, model) as workers:
        codes = [worker.wait(_SECS) for worker in workers]
    assert codes == [0, 0], printed(model_dir)
    options: dict[str, Any] = {"batch_size": batch_size, "unit_rows": unit_rows}
    options["recommender"] = recommender
    # Restored in one process, which finds nothing to do.
    restored = make_trainer(dataset, model_dir, **options)
    assert restored.finished
    assert latest(model_dir).num_shards == 2
    alone = make_trainer(dataset, tmp_path / "alone", replicas=2, eval="inline", **options)
    result = alone.fit()
    both = rows_of(restored.collection, tmp_path / "both")
    assert both == rows_of(alone.collection, tmp_path / "one")
    for ours, theirs in zip(restored.model.variables, alone.model.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    summary = json.loads((model_dir / "summary.json").read_text())
    assert summary["examples"] == dataset.split("train").rows
    for score in ("auc", "logloss"):
        assert summary["evaluation"][score] == result.summary["evaluation"][score]
    assert summary["training"]["auc"] == result.summary["training"]["auc"]


def test_workers_that_die_come_back_and_the_others_go_on(dataset: Dataset, tmp_path: Path) -> None:
    """Another worker, and then the first; in the end the run resumes in one process."""
    model_dir = tmp_path / "model"
    flags = ["--epochs=500", "--delta-steps=24"]
    with started_workers(dataset, model_dir, flags) as workers:

        def wait_until(holds: Callable[[], bool]) -> None:
            deadline = time.monotonic() + _SECS
            while not holds():
                assert time.monotonic() < deadline, printed(model_dir)
                time.sleep(0.05)  # the workers need the cores

        def wait_for_a_checkpoint() -> None:
            directory = CheckpointDirectory(model_dir)
            before = len(directory.numbers())
            wait_until(lambda: len(directory.numbers()) > before)

        def kill(rank: int) -> None:
            workers[rank].send_signal(signal.SIGKILL)
            wait_until(lambda: f"worker {rank} is lost: " in printed(model_dir)[1 - rank])
            workers.start(rank)

        for rank in (1, 0):
            wait_for_a_checkpoint()
            kill(rank)
        wait_for_a_checkpoint()
        workers[1].send_signal(signal.SIGTERM)
        assert [worker.wait(_SECS) for worker in workers] == [0, 0], printed(model_dir)
    saved = latest(model_dir)
    resumed = make_trainer(dataset, model_dir, batch_size=64, unit_rows=128, epochs=500)
    with contextlib.closing(resumed):
        assert resumed.saver.last == saved
        assert len(rows_of(resumed.collection, tmp_path / "rows")) == sum(
            resumed.collection.stats().rows.values()
        )
