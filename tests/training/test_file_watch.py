"""`--watch`: files that arrive are scored, then trained once each, whatever ends the run."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embedps
from embedps.data.dataset import Dataset
from embedps.errors import DatasetError, UsageError
from embedps.scheduling.arrivals import Arrival, Arrivals
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.unit_deaths import UnitDeaths
from embedps.scheduling.watch_ledger import SPLIT, WatchLedger
from embedps.tables import TableSpec, TimeToLive
from embedps.training import file_watch, training_loop
from embedps.training.file_watch import FileWatch
from tests.builders import (
    MIXED,
    TABLES,
    SumModel,
    dataset_fixture,
    latest,
    make_config,
)
from tests.commands import SMALL, finish, read_until, summary_of, train, until
from tests.tables.builders import rows_of


def fit_until(trainer: embedps.Trainer, condition: Callable[[], bool]) -> None:
    """Trains, and ends the run as a signal does once a condition holds."""

    def end() -> None:
        try:
            until(condition)
        finally:
            trainer._notices.end()

    with ThreadPoolExecutor() as pool:
        ended = pool.submit(end)
        trainer.fit()
        ended.result()


class Watched:
    """A watch of a directory, with scores that are numbered."""

    def __init__(self, tmp_path: Path, dataset: Dataset, *, ahead_units: int = 10**6) -> None:
        self.folder = tmp_path / "in"
        self.folder.mkdir(parents=True, exist_ok=True)
        options = LedgerOptions(batch_rows=10, unit_rows=1000)
        self.ledger = WatchLedger(
            dataset, options, Arrivals(tmp_path / "m"), epochs=1, directory=self.folder
        )
        self.scored: list[tuple[str, ...]] = []
        self.watch = FileWatch(
            self.folder, dataset, self.ledger, self._score, ahead_units=lambda: ahead_units
        )

    def _score(self, dataset: Dataset, stop: threading.Event) -> dict[str, float]:
        self.scored.append(tuple(str(path) for path in dataset.paths(SPLIT)))
        return {"auc": float("nan"), "loss": 0.1 * len(self.scored)}

    def put(self, source: Path, name: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, self.folder / ".partial")
        os.rename(self.folder / ".partial", self.folder / name)


dataset = dataset_fixture(evaluation=(700,), whole=True)


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
    now = 0.0
    monkeypatch.setattr(file_watch, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
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
        until(lambda: set(watched.watch._unreadable) == {"text.parquet", "growing.parquet"})
        growing.write(content[5000:])
        growing.close()
        until(lambda: len(watched.ledger.taken) == 4)  # the other one may yet change
        now = file_watch._SETTLE_SECS
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


def test_what_is_no_file_is_one_line_and_no_wait(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(file_watch, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    path, _ = dataset.paths("train")
    watched = Watched(tmp_path, dataset)
    folder = watched.folder
    os.mkfifo(folder / "fifo.parquet")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(folder / "socket.parquet"))  # a socket's path is a short one
    for name, target in (
        ("device", "/dev/zero"),
        ("folder", "/tmp"),
        ("dangling", "absent"),
        ("loop", "loop.parquet"),
        ("link", str(path)),
    ):
        os.symlink(target, folder / f"{name}.parquet")
    (folder / "nothing.parquet").touch()
    shutil.copy(path, folder / os.fsdecode(b"byte-\xff.parquet"))
    watched.put(path, "[/b] new\nline.parquet")
    watched.put(path, "folder.of.parquet/a.parquet")
    known = {"link.parquet", "[/b] new\nline.parquet", "folder.of.parquet/a.parquet"}
    with watched.watch:
        until(lambda: len(watched.ledger.taken) == 8)
        until(lambda: len(watched.watch._unreadable) == 3)
        now = file_watch._SETTLE_SECS
        until(lambda: len(watched.ledger.taken) == 11)
    assert not watched.watch._thread.is_alive()
    assert watched.ledger.num_rows == 3000 + len(known) * 1500
    told = sorted(line for line in watched.watch.news() if " is not trained: " in line)
    no_file = "must be a file but is not a regular one"
    assert [line for line in told if no_file in line] == [
        f"{name}.parquet is not trained: {no_file}"
        for name in ("device", "fifo", "folder", "socket")
    ]
    assert [line for line in told if no_file not in line] == [
        "byte-\udcff.parquet is not trained: its name must be UTF-8: rename it",
        "dangling.parquet is not trained: is a link to a file that is absent",
        *[line for line in told if line.startswith(("loop.", "nothing."))],
    ]
    assert len(told) == 8
    again = Watched(tmp_path, dataset)
    assert again.ledger.taken == watched.ledger.taken
    assert [each.path for each in again.ledger._arrivals.files if each.rows] == [
        name for name in watched.ledger.taken if name in known
    ]


def test_a_footer_that_claims_more_rows_than_its_file_can_hold_makes_no_units(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, dataset)
    watched.put(dataset.paths("train")[0], "a.parquet")
    monkeypatch.setattr(file_watch, "MAX_ROWS_PER_BYTE", 1e-3)
    with watched.watch:
        until(lambda: len(watched.ledger.taken) == 1)
    assert watched.watch.news() == [
        "a.parquet is not trained: its footer claims 1,500 rows, which it cannot hold"
    ]
    assert watched.ledger.num_rows == 3000


def test_what_ends_the_scores_ends_the_run(tmp_path: Path, dataset: Dataset) -> None:
    watched = Watched(tmp_path, dataset)

    def fails(dataset: Dataset, stop: threading.Event) -> None:
        raise OSError("no workers")

    watch = FileWatch(watched.folder, dataset, watched.ledger, fails, ahead_units=lambda: 100)
    watched.put(dataset.paths("train")[0], "a.parquet")
    with watch:
        watch._thread.join(60)
    with pytest.raises(OSError, match="no workers"):
        watch.news()
    assert watched.ledger.taken == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"watch": "hdfs://name/in"}, "must be a local path or a file:///, s3:// or gs:// URL"),
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
        embedps.Trainer(MIXED, dataset, config)
    assert "\n" not in str(error.value)


def test_a_bucket_must_be_there(s3_bucket: str, tmp_path: Path, dataset: Dataset) -> None:
    config = make_config(dataset, tmp_path / "m", watch="s3://no-such-bucket/in", eval="none")
    with pytest.raises(UsageError, match="there is no bucket 's3://no-such-bucket'"):
        embedps.Trainer(MIXED, dataset, config)


def test_files_wait_until_their_turn_is_near(tmp_path: Path, dataset: Dataset) -> None:
    """Thousands wait in the directory, not in memory, and are scored just before training."""
    watched = Watched(tmp_path, dataset, ahead_units=2)
    path, _ = dataset.paths("train")
    for i in range(2000):
        os.link(path, watched.folder / f"{i:04d}.parquet")
    ledger = watched.ledger
    trained = 0
    with watched.watch:
        for _ in range(6):  # the dataset's units
            unit = ledger.take()
            if unit is not None:
                ledger.done(unit)
        while trained < 40:
            unit = ledger.take()
            if unit is None:
                continue
            trained += 1
            ledger.done(unit)
            # Each file has two units. The watch looks before it takes a file of two units.
            assert ledger.num_waiting <= 2 + 2
        until(lambda: watched.watch.num_waiting > 1900)
    assert ledger.taken == [f"{i:04d}.parquet" for i in range(len(ledger.taken))]
    assert len(ledger.taken) < 30


def test_a_large_file_becomes_many_units(tmp_path: Path, dataset: Dataset) -> None:
    watched = Watched(tmp_path, dataset)
    table = pa.concat_tables([pq.read_table(dataset.paths("train")[0])] * 20)
    pq.write_table(table, watched.folder / ".large", row_group_size=30_000)
    os.rename(watched.folder / ".large", watched.folder / "large.parquet")
    with watched.watch:
        until(lambda: len(watched.ledger.taken) == 1)
    units = []
    while (unit := watched.ledger.take()) is not None:
        units.append(unit)
    large = [u for u in units if u.path.endswith("large.parquet")]
    assert [(u.first_row, u.num_rows) for u in large] == [(1000 * i, 1000) for i in range(30)]


def test_a_file_is_taken_once_whatever_happens_to_it(tmp_path: Path, dataset: Dataset) -> None:
    first, second = dataset.paths("train")
    watched = Watched(tmp_path, dataset)
    watched.put(first, "a.parquet")
    with watched.watch:
        until(lambda: len(watched.ledger.taken) == 1)
        watched.put(second, "a.parquet")  # written again
        watched.put(first, "b.parquet")
        until(lambda: len(watched.ledger.taken) == 2)
        (watched.folder / "b.parquet").unlink()
        watched.put(first, "c.parquet")
        until(lambda: len(watched.ledger.taken) == 3)
        shutil.rmtree(watched.folder)
        until(lambda: not watched.watch._lists)
        watched.folder.mkdir()
        watched.put(first, "d.parquet")
        until(lambda: len(watched.ledger.taken) == 4)
    assert watched.ledger.taken == [f"{name}.parquet" for name in "abcd"]
    news = watched.watch.news()
    assert "cannot be listed, and is tried again" in news[3]
    assert news[4].endswith("in is listed again")


def test_a_file_that_its_scores_cannot_read_is_refused(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "_SETTLE_SECS", 0.1)
    watched = Watched(tmp_path, dataset)

    def score(dataset: Dataset, stop: threading.Event) -> dict[str, float]:
        (path,) = dataset.paths(SPLIT)
        if path.name == "bad.parquet":
            raise DatasetError(
                f"Parquet file '{path}', row 7: a label is 2: make the dataset again"
            )
        return {"loss": 1.0}

    watch = FileWatch(watched.folder, dataset, watched.ledger, score, ahead_units=lambda: 100)
    for name in ("bad.parquet", "good.parquet"):
        watched.put(dataset.paths("train")[0], name)
    with watch:
        until(lambda: len(watched.ledger.taken) == 2)
    assert watched.ledger.num_rows == 3000 + 1500
    (line,) = [each for each in watch.news() if "bad" in each]
    assert line.startswith("bad.parquet is not trained: cannot be read: Parquet file '")
    assert line.endswith("row 7: a label is 2")


def test_a_file_whose_scores_always_fail_is_set_aside(tmp_path: Path, dataset: Dataset) -> None:
    """By an error, by the death of the process, or by those of workers."""

    def score(dataset: Dataset, stop: threading.Event) -> dict[str, float]:
        (path,) = dataset.paths(SPLIT)
        if path.name == "error.parquet":
            raise ValueError("an id is 3")
        if path.name == "workers.parquet":
            causes = [deaths.count_death(path.name) for _ in range(2)]
            raise DatasetError(str(causes[1]))
        return {"loss": 1.0}

    for each in ("killer", "error", "workers", "good"):
        Watched(tmp_path, dataset).put(dataset.paths("train")[0], f"{each}.parquet")
    for i, name in enumerate(("killer", "error", "workers", "good")):
        os.utime(tmp_path / "in" / f"{name}.parquet", ns=(i, i))
    news: list[str] = []
    for number in range(3):
        watched = Watched(tmp_path, dataset)
        deaths = watched.ledger.deaths = UnitDeaths(tmp_path, limit=2)
        deaths.begin_run()
        unit = watched.ledger.take()
        assert unit is not None
        watched.ledger.done(unit)
        news += deaths.news()
        if number < 2 and not deaths.is_aside("killer.parquet"):
            assert deaths.wait_to_enter("token", "killer.parquet", threading.Event())
            deaths.begin("token")  # and the process dies
            continue
        watch = FileWatch(watched.folder, dataset, watched.ledger, score, ahead_units=lambda: 100)
        with watch:
            watch._thread.join()
        with pytest.raises(ValueError, match="an id is 3"):
            watch.news()
    assert deaths.set_aside == ["killer.parquet"]
    unit = watched.ledger.take()
    assert unit is not None
    watched.ledger.done(unit)  # else three in a row would end the run
    watch = FileWatch(watched.folder, dataset, watched.ledger, score, ahead_units=lambda: 100)
    with watch:
        until(lambda: watched.ledger.taken == ["good.parquet"])
    assert deaths.set_aside == ["killer.parquet", "error.parquet", "workers.parquet"]
    news += deaths.news()
    assert [line.partition(" is set aside: ")[0] for line in news[1:]] == [
        "killer.parquet",
        "error.parquet",
        "workers.parquet",
    ]
    assert Watched(tmp_path, dataset).ledger.taken == ["good.parquet"]


def test_a_run_goes_on_without_files_that_are_gone(
    tmp_path: Path, dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file is removed, one is replaced, one is damaged after they were scored."""
    first, second = dataset.paths("train")
    watched = Watched(tmp_path / "w", dataset)
    whole = pq.read_table(first)
    labels = pa.array([2.0] * 1500, pa.float32())
    wrong = whole.set_column(whole.column_names.index("label"), whole.schema.field("label"), labels)
    pq.write_table(wrong, tmp_path / "wrong")
    config = make_config(
        dataset, tmp_path / "m", watch=str(watched.folder), eval="none", seed=3, delta_secs=0.05
    )
    arrived = [
        Arrival(path=f"{name}.parquet", row_groups=(1500,)) for name in ("gone", "short", "wrong")
    ]
    Arrivals(tmp_path / "m").append(arrived)
    trainer = embedps.Trainer(MIXED, dataset, config)
    ledger = trainer.ledger
    assert isinstance(ledger, WatchLedger)
    watched.put(tmp_path / "wrong", "wrong.parquet")
    pq.write_table(whole.slice(0, 500), watched.folder / "short.parquet")
    watched.put(second, "good.parquet")
    watched.put(tmp_path / "wrong", "bad.parquet")  # its scores refuse it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_watch, "_SETTLE_SECS", 0.0)
        fit_until(trainer, lambda: len(ledger.taken) == 5 and ledger.num_done == 6 + 4 * 3)
    out = capsys.readouterr().out
    assert out.count("of " + str(watched.folder / "gone.parquet") + " are left out") == 3
    assert "short.parquet are left out: Parquet file" in out
    assert "has 500 rows" in out
    assert out.count("wrong.parquet are left out") == 3
    assert "good.parquet: 1,500 examples" in out
    assert "bad.parquet is not trained: cannot be read: Parquet file" in out
    manifest = latest(tmp_path / "m")
    assert manifest.ledger["watched"]["left_out_rows"] == 3 * 1500
    assert manifest.progress["examples"] == 3000 + 1500
    assert summary_of(tmp_path / "m")["examples"] == 4500


def test_a_files_line_comes_before_those_of_its_units(
    tmp_path: Path,
    dataset: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(training_loop, "_SLOW_POLL_SECS", 1e6)  # only a unit's line brings news
    watched = Watched(tmp_path / "w", dataset)
    fields = {"watch": str(watched.folder), "eval": "none", "log_secs": 1e-3}
    trainer = embedps.Trainer(MIXED, dataset, make_config(dataset, tmp_path / "m", **fields))
    ledger = trainer.ledger
    assert isinstance(ledger, WatchLedger)
    take_file, shown, trained = ledger.take_file, "", threading.Event()

    def take_and_train(arrival: Arrival) -> None:
        take_file(arrival)
        until(has_shown_all)  # before the watch does anything more
        trained.set()

    def has_shown_all() -> bool:
        nonlocal shown
        shown += capsys.readouterr().out
        return "units 9/9 " in shown

    monkeypatch.setattr(ledger, "take_file", take_and_train)

    def file_is_trained() -> bool:
        until(lambda: ledger.num_done == 6)
        watched.put(dataset.paths("train")[0], "a.parquet")
        return trained.wait(60)

    fit_until(trainer, file_is_trained)
    lines = shown.splitlines()
    (of_file,) = [i for i, x in enumerate(lines) if x.startswith("a.parquet: 1,500 examples, ")]
    assert of_file < min(i for i, x in enumerate(lines) if re.match("units [789]/9 ", x))


def test_event_time_goes_by_the_files(tmp_path: Path, dataset: Dataset) -> None:
    """A file from the far future moves no clock, so it empties no table; later files age rows."""
    timed = dataclasses.replace(dataset, keys=(), timestamp="row")  # a row per millisecond
    age = (TimeToLive(event_secs=4),)
    tables = (*TABLES[:-1], TableSpec(name="row", embedding_dim=3, eviction=age))
    recommender = embedps.Recommender(build=lambda: SumModel(tables=tables))
    folder = tmp_path / "in"
    folder.mkdir()
    untimed = pq.read_table(dataset.paths("train")[0])
    pq.write_table(untimed, folder / "00.parquet", write_statistics=False)
    at = untimed.column_names.index("row")
    times = [4 * 10**15 if i == 3 else 3000 + 1500 * i for i in range(14)]
    for i, first in enumerate(times):
        rows = pa.array(range(first, first + 1500))
        written = untimed.set_column(at, untimed.schema.field("row"), rows)
        pq.write_table(written, folder / f"{i + 1:02d}.parquet", row_group_size=100)
        os.utime(folder / f"{i + 1:02d}.parquet", ns=(i + 1, i + 1))
    os.utime(folder / "00.parquet", ns=(0, 0))
    config = make_config(
        timed, tmp_path / "m", watch=str(folder), eval="none", shuffle=False, unit_rows=500
    )
    trainer = embedps.Trainer(recommender, timed, config)
    ledger = trainer.ledger
    assert isinstance(ledger, WatchLedger)
    fit_until(trainer, lambda: len(ledger.taken) == 15 and ledger.num_done == ledger.num_units)
    assert ledger.num_units == 6 + 14 * 3  # all but 00.parquet, which has no statistics
    trainer.collection.sweep()
    ids = rows_of(trainer.collection, tmp_path / "rows")
    left = {id_ for table_name, id_ in ids if table_name == "row"}
    far = {i for i in left if i >= 4 * 10**15}
    assert left, "the table is not empty"
    # The clock is at the file five before the end; rows of 4 s before that are there.
    assert max(left - far) == times[-1] + 1499
    assert min(left - far) >= times[-5] - 4000 - 3 * 1500
    assert trainer.collection.eviction_stats()["row"]["age"] > 0


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
    run.send_signal(signal.SIGINT)
    assert "run the same command again to resume: 12/12 units" in finish(run)
    summary = summary_of(model)
    assert summary["units"]["done"] == 12
    assert not summary["finished"]
    assert [each.path for each in Arrivals(model).files] == ["a.parquet", "b.parquet"]
    manifest = latest(model)
    assert manifest.ledger["prefix"] == 12
    assert manifest.progress["examples"] == 6000
    assert manifest.step == 4 * 24
    assert manifest.ledger["watched"] == {"first_unit": 6, "in_progress": [], "left_out_rows": 0}
    refused = train(dataset, model, *SMALL, "--eval=none")
    _, error = refused.communicate(timeout=200)
    assert refused.returncode == 2
    assert "give --watch to go on" in error
