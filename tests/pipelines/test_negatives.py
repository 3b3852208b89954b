"""Negatives are copies of positive rows with the item of another row to train on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from embedps.data.dataset import Dataset
from embedps.errors import DatasetError, UsageError
from embedps.features.table_schema import Table
from embedps.pipelines.ingestion import negatives
from embedps.pipelines.ingestion.make_dataset import make_dataset
from embedps.pipelines.ingestion.options import HeldOut, Negatives, Options
from tests.builders import read_split
from tests.pipelines.builders import files_of
from tests.pipelines.events import make_events, write_events

COLUMNS: list[dict[str, Any]] = [
    {"name": "number", "as": "key", "type": "integer", "keep": True},
    {"name": "user", "as": "key", "type": "string", "keep": True},
    {"name": "item", "as": "categorical", "type": "integer"},
    {"name": "shelf", "as": "categorical", "type": "integer"},
    {"name": "time", "as": "timestamp"},
    {"name": "bought", "as": "label", "value": 1},
    {"name": "past", "as": "list", "type": "integer", "history": {"of": "item", "by": "user"}},
]


def make(
    logs: Path, output: Path, kind: str = "csv", columns: Any = None, **settings: Any
) -> Dataset:
    table = Table.parse({"format": kind, "column": columns or COLUMNS})
    drawn: dict[str, Any] = {
        "negatives": 3,
        "negatives_of": ("item", "shelf"),
        "negatives_by": "popularity",
    }
    drawn |= {name: settings.pop(name) for name in [*settings] if name in drawn}
    held = {n: settings.pop(n) for n in [*settings] if n in ("eval_last", "by", "eval_fraction")}
    options = Options(
        input=(str(logs),),
        output=output,
        declared=table,
        num_shards=2,
        held_out=HeldOut(**held),
        negatives=Negatives(**drawn),
        **settings,
    )
    return make_dataset(options)[0]


def make_bought(num_rows: int = 500) -> list[dict[str, Any]]:
    events = make_events(num_rows)
    for event in events:
        event["item"] = min(event["item"], 3) if event["number"] % 2 else event["item"]
        event["shelf"] = event["item"] * 7
        del event["clicked"]
    return events


def rows(dataset: Dataset, split: str) -> list[dict[str, Any]]:
    return read_split(dataset, split).to_pylist()


@pytest.mark.parametrize("by", ["popularity", "uniform"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_each_positive_row_has_its_negatives(tmp_path: Path, kind: str, by: str):
    events = make_bought()
    events[-1] |= {"user": "once", "item": 999, "shelf": 6993}
    write_events(tmp_path / f"a.{kind}", events)
    held = {"eval_last": 1, "by": "user"}
    dataset = make(tmp_path / f"a.{kind}", tmp_path / "set", kind, negatives_by=by, **held)
    dataset.verify()
    items: Counter[int] = Counter()
    trained = {row["item"] for row in rows(dataset, "train") if row["bought"]}
    for split in ("train", "eval"):
        found = rows(dataset, split)
        positives = {row["number"]: row for row in found if row["bought"] == 1}
        drawn = [row for row in found if row["bought"] == 0]
        assert Counter(row["number"] for row in drawn) == dict.fromkeys(positives, 3)
        for row in drawn:
            of = positives[row["number"]]
            assert row["item"] != of["item"]
            assert row["item"] in trained
            assert row["shelf"] == row["item"] * 7
            assert {**row, "item": 0, "shelf": 0, "bought": 1} == {**of, "item": 0, "shelf": 0}
        items.update(row["item"] for row in drawn)
        assert dataset.splits[split].positives == len(positives) > 0
    # An item that half of the rows have is drawn far more often by popularity.
    share = items[3] / items.total()
    assert (share > 0.2) == (by == "popularity")
    assert dataset.input.lines_read == 500


def test_draws_are_those_of_two_workers_and_a_small_pool_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for part in range(2):
        write_events(tmp_path / f"in/{part}.csv", make_bought()[part * 250 : part * 250 + 250])
    flags = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    make(tmp_path / "in", tmp_path / "one")
    make(tmp_path / "in", tmp_path / "two", beam_flags=flags)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    monkeypatch.setattr(negatives, "POOL_ROWS", 5)
    small = make(tmp_path / "in", tmp_path / "small", negatives_by="uniform")
    drawn = {row["item"] for row in rows(small, "train") if not row["bought"]}
    assert len(drawn) == 5


def test_negatives_that_cannot_be_drawn_are_refused(tmp_path: Path):
    same = [{**event, "item": 4, "shelf": 1} for event in make_bought(50)]
    log = write_events(tmp_path / "a.csv", same)
    with pytest.raises(DatasetError, match="need positive rows of two items or more"):
        make(log, tmp_path / "set")
    with pytest.raises(UsageError, match="--negatives-of user must be a categorical column"):
        make(log, tmp_path / "set", negatives_of=("user",))
    with pytest.raises(UsageError, match="--negatives-of time must be a column of the item's"):
        make(log, tmp_path / "set", negatives_of=("item", "time"))
    with pytest.raises(UsageError, match='declare it with as = "label", value = 1'):
        make(log, tmp_path / "set", columns=[c for c in COLUMNS if c["as"] != "label"])
    with pytest.raises(UsageError, match="give --negatives and --negatives-of together"):
        Negatives(negatives=3)
    with pytest.raises(UsageError, match="optional, soft, weight and value belong to a label"):
        Table.parse({"column": [{"name": "x", "as": "numeric", "value": "1"}]})
