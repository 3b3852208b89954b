"""`--watch`: files that arrive are scored, then trained once each, whatever ends the run."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import embedps
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.scheduling.arrivals import Arrivals
from embedps.scheduling.ledger import LedgerOptions
from embedps.scheduling.watch_ledger import SPLIT, WatchLedger
from embedps.tables import TableSpec, TimeToLive
from embedps.training import file_watch
from embedps.training.file_watch import FileWatch
from tests.builders import latest, make_config, make_mixed, write_dataset
from tests.commands import SMALL, finish, read_until, summary_of, train


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Watched:
    """A watch of a directory, with scores that are numbered."""

    def __init__(self, tmp_path: Path, dataset: Dataset) -> None:
        self.folder = tmp_path / "in"
        self.folder.mkdir(exist_ok=True)
        options = LedgerOptions(batch_rows=10, unit_rows=1000)
        self.ledger = WatchLedger(
            dataset, options, Arrivals(tmp_path / "m"), epochs=1, directory=self.folder
        )
        self.scored: list[tuple[str, ...]] = []
        self.watch = FileWatch(self.folder, dataset, self.ledger, self._score)

    def _score(self, dataset: Dataset, stop: threading.Event) -> dict[str, float]:
        self.scored.append(tuple(str(path) for path in dataset.paths(SPLIT)))
        return {"auc": float("nan"), "loss": 0.1 * len(self.scored)}

    def put(self, source: Path, name: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, self.folder / ".partial")
        os.rename(self.folder / ".partial", self.folder / name)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", evaluation=(700,))


def test_files_are_taken_once_in_order(tmp_path: Path, dataset: Dataset) -> None:
    first, second = dataset.paths("train")
    watched = Watched(tmp_path, dataset)
    for name in ("_a.parquet", ".b.parquet", "_x/c.parquet", "notes.txt"):
        watched.put(first, name)
    for i, name in enumerate(("z.parquet", "day=2/y.parquet", "x.parquet")):
        watched.put(first, name)
        os.utime(watched.folder / name, ns=(i, i))
    with watched.watch:
        until(lambda: len(watched.ledger.taken) == 3)
        watched.put(second, "a.parquet")
        until(lambda: len(watched.ledger.taken) == 4)
    names = ["z.parquet", "day=2/y.parquet", "x.parquet", "a.parquet"]
    assert watched.ledger.taken == names
    assert watched.scored == [(str(watched.folder / name),) for name in names]
    assert watched.ledger.num_rows == 3000 + 4 * 1500
    assert watched.watch.news()[0] == "z.parquet: 1,500 examples, before training loss 0.1000"
    assert watched.watch.news() == []
    assert watched.watch.scores()[3] == {"auc": None, "loss": 0.4}
    again = Watched(tmp_path, dataset)
    again.put(first, "new.parquet")
    with again.watch:
        until(lambda: len(again.ledger.taken) == 5)
    assert again.scored == [(str(again.folder / "new.parquet"),)]
    assert again.ledger.num_rows == 3000 + 5 * 1500


def test_files_that_cannot_be_trained_are_told_once(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "_SETTLE_SECS", 0.5)
    path, _ = dataset.paths("train")
    table = pq.read_table(path)
    watched = Watched(tmp_path, dataset)
    pq.write_table(table.drop_columns(["C2"]), watched.folder / "less.parquet")
    numbers = [float(i) for i in range(table.num_rows)]
    wrong = table.set_column(table.column_names.index("C1"), "C1", [numbers])
    pq.write_table(wrong, watched.folder / "wrong.parquet")
    pq.write_table(table.slice(0, 0), watched.folder / "empty.parquet")
    (watched.folder / "text.parquet").write_text("no Parquet")
    content = path.read_bytes()
    growing = open(watched.folder / "growing.parquet", "wb")  # noqa: SIM115
    growing.write(content[:5000])
    growing.flush()
    with watched.watch:
        until(lambda: len(watched.ledger.taken) == 3)
        growing.write(content[5000:])
        growing.close()
        until(lambda: len(watched.ledger.taken) == 5)
    news = sorted(watched.watch.news())
    assert news[0].startswith("empty.parquet: 0 examples")
    assert news[1].startswith("growing.parquet: 1,500 examples")
    assert news[2:] == [
        "less.parquet is not trained: column 'C2' must have Arrow type int64, it has none",
        f"text.parquet is not trained: {news[3].partition('trained: ')[2]}",
        "wrong.parquet is not trained: column 'C1' must have Arrow type int64, it has double",
    ]
    assert "must be a Parquet file: " in news[3]
    assert "\n" not in news[3]
    with Watched(tmp_path, dataset).watch:
        pass
    assert len(Arrivals(tmp_path / "m").files) == 5


def test_what_ends_the_scores_ends_the_run(tmp_path: Path, dataset: Dataset) -> None:
    watched = Watched(tmp_path, dataset)

    def fails(dataset: Dataset, stop: threading.Event) -> None:
        raise OSError("no workers")

    watch = FileWatch(watched.folder, dataset, watched.ledger, fails)
    watched.put(dataset.paths("train")[0], "a.parquet")
    with watch:
        watch._thread.join(60)
    with pytest.raises(OSError, match="no workers"):
        watch.news()
    assert watched.ledger.taken == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"watch": "s3://bucket/in"}, "must be a local directory"),
        ({"watch": "/no/such"}, "must be a directory: make it first"),
        ({"schedule": "cosine"}, "leave them out"),
        ({"eval": "inline"}, "use --eval sidecar or none"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, dataset: Dataset, options: dict[str, str], message: str
) -> None:
    config = make_config(
        dataset, tmp_path / "m", **{"watch": str(tmp_path), "eval": "none", **options}
    )
    with pytest.raises(UsageError, match=message) as error:
        embedps.Trainer(make_mixed(), dataset, config)
    assert "\n" not in str(error.value)


def test_event_time_is_refused(tmp_path: Path, dataset: Dataset) -> None:
    made = make_mixed()
    old = TableSpec(name="row", dim=3, eviction=(TimeToLive(event_secs=60),))
    recommender = dataclasses.replace(made, tables=(*made.tables[:-1], old))
    config = make_config(dataset, tmp_path / "m", watch=str(tmp_path), eval="none")
    with pytest.raises(UsageError, match="event time"):
        embedps.Trainer(recommender, dataset, config)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "cluster", [(), ("--num-ps=1", "--num-workers=2")], ids=["here", "servers"]
)
def test_no_example_is_lost_by_kills(
    tmp_path: Path, dataset: Dataset, cluster: tuple[str, ...]
) -> None:
    watched, model = Watched(tmp_path, dataset), tmp_path / "model"
    first, second = dataset.paths("train")

    def start() -> subprocess.Popen[str]:
        flags = (*SMALL, *cluster, "--eval=none", "--delta-secs=0.1", "--log-secs=0.1")
        return train(dataset, model, f"--watch={watched.folder}", *flags)

    run = start()
    read_until(run, "units 6/6")
    watched.put(first, "a.parquet")
    read_until(run, "a.parquet: 1,500 examples, before training")
    run.kill()  # while it trains the file, or has trained and not saved it
    run.communicate()
    watched.put(second, "b.parquet")
    run = start()
    read_until(run, "b.parquet: 1,500 examples, before training auc 0.")
    read_until(run, "units 12/12")
    run.send_signal(signal.SIGTERM)
    assert "run the same command again to resume: 12/12 units" in finish(run)
    summary = summary_of(model)
    assert summary["units"]["done"] == 12
    assert not summary["finished"]
    assert [each.path for each in Arrivals(model).files] == ["a.parquet", "b.parquet"]
    manifest = latest(model)
    assert manifest.ledger["prefix"] == 12
    assert manifest.progress["examples"] == 6000
    assert manifest.step == 4 * 24
    assert manifest.ledger["watched"] == {"first_unit": 6, "in_progress": []}
    refused = train(dataset, model, *SMALL, "--eval=none")
    _, error = refused.communicate(timeout=200)
    assert refused.returncode == 2
    assert "give --watch to go on" in error
