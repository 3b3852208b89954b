"""Each user's last rows are held out: of any format, order, number of workers and size."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from embedps.data.dataset import Dataset
from embedps.errors import DatasetError, UsageError
from embedps.features.table_schema import Table
from embedps.pipelines.ingestion import user_runs
from embedps.pipelines.ingestion.options import HeldOut
from tests.builders import read_split
from tests.pipelines.builders import files_of
from tests.pipelines.events import make_events, small_ranges, write_events
from tests.pipelines.shop import make


def table_of(kind: str) -> Table:
    columns: list[dict[str, Any]] = [
        {"name": "number", "as": "key", "type": "integer", "keep": True},
        {"name": "user", "as": "key", "type": "string", "keep": True},
        {"name": "item", "as": "categorical", "type": "integer", "transform": [{"min_count": 2}]},
        {"name": "time", "as": "timestamp"},
        {"name": "clicked", "as": "label"},
    ]
    return Table.parse({"format": kind, "column": columns})


def last_numbers(events: list[dict[str, Any]], last: int) -> set[int]:
    """The numbers of the events to hold out, by plain sorting."""
    of_user = defaultdict(list)
    for event in sorted(events, key=lambda event: event["time"]):
        of_user[event["user"]].append(event["number"])
    return {
        number
        for user, numbers in of_user.items()
        if user and len(numbers) > last
        for number in numbers[-last:]
    }


def numbers(dataset: Dataset, split: str) -> list[int]:
    return read_split(dataset, split)["number"].to_pylist()


@pytest.mark.parametrize("last", [1, 3])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_last_rows_of_each_user_are_held_out(
    tmp_path: Path,
    kind: str,
    last: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    small_ranges(monkeypatch)
    events = make_events()
    for part in range(3):
        write_events(tmp_path / f"in/{part}.{kind}", events[part * 200 : part * 200 + 200])
    dataset = make(table_of(kind), tmp_path / "in", tmp_path / "set", eval_last=last, by="user")
    dataset.verify()
    train, held = numbers(dataset, "train"), numbers(dataset, "eval")
    assert sorted(train + held) == list(range(600))
    assert set(held) == last_numbers(events, last)
    sizes: dict[str, int] = defaultdict(int)
    for event in events:
        sizes[event["user"]] += 1
    said = capsys.readouterr().err
    left = sum(size <= last for user, size in sizes.items() if user)
    assert left
    assert f"holds out no row of {left} users" in said
    assert f"{sizes['']} rows have no user" in said
    # The statistics are of the rows to train on only.
    seen: dict[int, int] = defaultdict(int)
    for number in train:
        seen[events[number]["item"]] += 1
    found = {r["number"]: r["item"] for s in ("train", "eval") for r in rows_of(dataset, s)}
    for number, item in found.items():
        kept = events[number]["item"]
        assert item == (kept if seen[kept] >= 2 else -2)


@pytest.mark.parametrize("seed", range(6))
def test_rows_without_a_split_key_are_told_as_they_go_together(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
):
    events = make_events()
    for part in range(2):
        write_events(tmp_path / f"in/{part}.csv", events[part * 300 : part * 300 + 300])
    flags: dict[str, Any] = {"seed": seed, "eval_fraction": 0.5}
    dataset = make(table_of("csv"), tmp_path / "in", tmp_path / "a", split_key=("user",), **flags)
    none = {event["number"] for event in events if not event["user"]}
    held = none & set(numbers(dataset, "eval"))
    assert held in (set(), none)
    where = "held out" if held else "to train on"
    told = f"{len(none)} rows have no user, and go by --split-key together: all are {where}"
    assert told in capsys.readouterr().err
    both = ("user", "number")  # each row has one of them
    make(table_of("csv"), tmp_path / "in", tmp_path / "b", split_key=both, **flags)
    assert "--split-key" not in capsys.readouterr().err


def rows_of(dataset: Dataset, split: str) -> list[dict[str, Any]]:
    return read_split(dataset, split).to_pylist()


def test_ranges_and_workers_do_not_change_a_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    events = make_events(2000, seed=1)
    for part in range(4):
        write_events(tmp_path / f"in/{part}.csv", events[part * 500 : part * 500 + 500])
    options = {"eval_last": 1, "by": "user"}
    whole = make(table_of("csv"), tmp_path / "in", tmp_path / "whole", **options)
    flags = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    make(table_of("csv"), tmp_path / "in", tmp_path / "two", beam_flags=flags, **options)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "two")
    monkeypatch.setattr(user_runs, "RANGE_ROWS", 64)
    monkeypatch.setattr(user_runs, "_SAMPLE_ROWS", 4)
    cut = make(table_of("csv"), tmp_path / "in", tmp_path / "cut", **options)
    for split in ("train", "eval"):
        assert sorted(numbers(cut, split)) == sorted(numbers(whole, split))
    assert set(numbers(whole, "eval")) == last_numbers(events, 1)


def test_a_range_holds_no_more_rows_than_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small_ranges(monkeypatch)
    events = [{**e, "user": "bot", "time": e["number"]} for e in make_events(1000)]
    write_events(tmp_path / "a.csv", events)
    seen = []
    read = user_runs.UserRunReader.read

    def watched(self: Any, of: Any) -> Any:
        found = read(self, of)
        assert found is not None
        seen.append(len(found.keys))
        return found

    monkeypatch.setattr(user_runs.UserRunReader, "read", watched)
    dataset = make(table_of("csv"), tmp_path / "a.csv", tmp_path / "set", eval_last=5, by="user")
    assert sum(seen) == 1000
    assert max(seen) <= 16 + 2 * 15  # a sample of each of 15 runs
    assert sorted(numbers(dataset, "eval")) == [995, 996, 997, 998, 999]


def test_bad_rows_are_nobodys_last(tmp_path: Path):
    events = make_events(100)
    last = max(e["number"] for e in events if e["number"] in last_numbers(events, 1))
    events[last]["clicked"] = 7
    write_events(tmp_path / "a.csv", events)
    dataset = make(table_of("csv"), tmp_path / "a.csv", tmp_path / "set", eval_last=1, by="user")
    good = [event for event in events if event["number"] != last]
    assert set(numbers(dataset, "eval")) == last_numbers(good, 1)


def test_what_cannot_be_split_is_refused(tmp_path: Path):
    events = write_events(tmp_path / "a.csv", make_events(20))
    with pytest.raises(DatasetError, match="has none: give a time, a value or fewer rows"):
        make(table_of("csv"), events, tmp_path / "set", eval_last=500, by="user")
    with pytest.raises(UsageError, match="--by clicked must be a key or categorical column"):
        make(table_of("csv"), events, tmp_path / "set", eval_last=1, by="clicked")
    untimed = Table.parse(
        {"column": [c.to_json() for c in table_of("csv").columns if c.role != "timestamp"]}
    )
    with pytest.raises(UsageError, match="--eval-last needs a timestamp column"):
        make(untimed, events, tmp_path / "set", eval_last=1, by="user")
    with pytest.raises(UsageError, match="give --eval-last and --by together"):
        HeldOut(eval_last=1)
    with pytest.raises(UsageError, match="give one of"):
        HeldOut(eval_last=1, by="user", eval_from="2024-01-01")
    with pytest.raises(UsageError, match="eval_last must be at least 1"):
        HeldOut(eval_last=0, by="user")
