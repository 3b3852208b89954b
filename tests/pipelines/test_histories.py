"""Histories of events: what a user did strictly before, and never what is held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.features.table_schema import Table
from embedps.features.transforms import Transforms
from embedps.pipelines.ingestion import user_runs
from tests.builders import read_split
from tests.pipelines.builders import files_of
from tests.pipelines.events import make_events, small_ranges, write_events
from tests.pipelines.shop import make

_DAYS = 10 / 86_400  # 10 seconds


def table_of(kind: str, **history: Any) -> Table:
    columns: list[dict[str, Any]] = [
        {"name": "past", "as": "list", "type": "integer"},
        {"name": "number", "as": "key", "type": "integer", "keep": True},
        {"name": "user", "as": "key", "type": "string"},
        {"name": "item", "as": "categorical", "type": "integer"},
        {"name": "time", "as": "timestamp"},
        {"name": "clicked", "as": "label"},
    ]
    columns[0]["history"] = {"of": "item", "by": "user", **history}
    return Table.parse({"format": kind, "column": columns})


def plain_histories(
    events: list[dict[str, Any]], held: set[int], **history: Any
) -> dict[int, list[int]]:
    """The history of each event, by looking at all others."""
    found = {}
    for row in events:
        days = history.get("days", 0)
        earlier = [
            other
            for other in sorted(events, key=lambda event: event["time"])
            if other["user"] == row["user"] != ""
            and other["time"] < row["time"]
            and (not days or other["time"] >= row["time"] - round(days * 86_400))
            and other["item"] != -1
            and (other["clicked"] or not history.get("positives"))
            and (row["number"] in held or other["number"] not in held)
        ]
        found[row["number"]] = [each["item"] for each in earlier][-history.get("length", 50) :]
    return found


def histories(dataset: Dataset) -> tuple[dict[int, list[int]], set[int]]:
    """The history of each row, and the rows that are held out."""
    rows = {split: read_split(dataset, split).to_pylist() for split in ("train", "eval")}
    found = {row["number"]: row["past"] for part in rows.values() for row in part}
    return found, {row["number"] for row in rows["eval"]}


@pytest.mark.parametrize(
    "split",
    [
        {"eval_last": 2, "by": "user"},
        {"eval_from": "1970-01-01T00:00:15"},
        {"eval_fraction": 0.3},
        {"eval_where": "item=3"},
        {"eval_fraction": 0.4, "split_key": ("user",)},
    ],
    ids=lambda split: next(iter(split)),
)
@pytest.mark.parametrize(
    "history",
    [{"length": 3}, {"length": 40}, {"days": _DAYS}, {"positives": True, "length": 2}],
    ids=str,
)
def test_history_is_of_earlier_rows_that_may_be_known(
    tmp_path: Path, split: dict[str, Any], history: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    small_ranges(monkeypatch)
    events = make_events(400, seed=len(str(history)))
    events[5]["item"] = events[50]["item"] = -1  # missing
    for part in range(2):  # events arrive late: the files are in no order of time
        write_events(tmp_path / f"in/{part}.csv", events[part * 200 : part * 200 + 200])
    dataset = make(table_of("csv", **history), tmp_path / "in", tmp_path / "set", **split)
    found, held = histories(dataset)
    assert held
    assert found == plain_histories(events, held, **history)
    assert max(map(len, found.values())) > 1


def test_bytes_are_those_of_two_workers_and_other_formats_give_the_same_rows(tmp_path: Path):
    events = make_events(2000, seed=1)
    for kind in ("csv", "jsonl", "parquet"):
        for part in range(2):
            write_events(tmp_path / f"{kind}/{part}.{kind}", events[part * 1000 :][:1000])
    split: dict[str, Any] = {"eval_last": 1, "by": "user"}
    flags = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    one = make(table_of("csv"), tmp_path / "csv", tmp_path / "one", **split)
    make(table_of("csv"), tmp_path / "csv", tmp_path / "two", beam_flags=flags, **split)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    for kind in ("jsonl", "parquet"):
        other = make(table_of(kind), tmp_path / kind, tmp_path / f"set-{kind}", **split)
        assert histories(other) == histories(one)


def test_long_histories_are_made_in_smaller_ranges(tmp_path: Path):
    path = write_events(tmp_path / "a.csv", make_events(3000))
    seen = []
    find = user_runs.find_ranges

    def watched(*args: Any) -> Any:
        seen.append(find(*args))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_runs, "RANGE_ROWS", 1 << 13)
        patch.setattr(
            "embedps.pipelines.ingestion.beam_stages.find_ranges",
            watched,
        )
        make(table_of("csv", length=1000), path, tmp_path / "long")
        make(table_of("csv", length=50), path, tmp_path / "short")
    assert [len(ranges) for ranges in seen] == [11, 1]


def test_a_record_that_serving_gets_has_its_own_list(tmp_path: Path):
    path = write_events(tmp_path / "a.csv", make_events(50))
    make(table_of("csv", length=3), path, tmp_path / "set")
    stored = json.loads((tmp_path / "set/_transforms.json").read_text())
    assert "history" in json.dumps(stored)
    made = Transforms.load(tmp_path / "set").apply(
        pa.record_batch({"item": [4], "past": pa.array([[1, 2]])})
    )
    assert made.to_pylist() == [{"item": 4, "past": [1, 2]}]


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ({"length": 0}, "length must be 1 to 1000, got 0"),
        ({"length": True}, "length must be 1 to 1000"),
        ({"days": -1}, "days must be 0 to 36500"),
        ({"days": float("nan")}, "days must be a finite number"),
        ({"of": "user"}, "must be of a categorical column of its type, integer, and 'user'"),
        ({"by": "time"}, "must be by a key or categorical column, got 'time'"),
        ({"by": "who"}, "there is no column 'who'"),
        ({"window": 3}, "history has no setting window"),
        ({"positives": 1}, "positives must be true or false"),
    ],
)
def test_a_history_that_cannot_be_made_is_refused(history: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        table_of("csv", **history)


def test_histories_and_the_split_must_be_by_one_column(tmp_path: Path):
    path = write_events(tmp_path / "a.csv", make_events(20))
    with pytest.raises(UsageError, match="--by item must be the column that the schema's histor"):
        make(table_of("csv"), path, tmp_path / "set", eval_last=1, by="item")


@pytest.mark.parametrize("name", ["din", "sasrec", "two_tower"])
def test_models_train_on_histories(tmp_path: Path, name: str):
    from embedps.cluster.embedded import EmbeddedCluster
    from embedps.models import din, sasrec, two_tower
    from embedps.run.config import TrainConfig
    from embedps.training.trainer import Trainer

    path = write_events(tmp_path / "a.csv", make_events(500))
    node = table_of("csv").to_json()
    del node["feature"]  # each column's own
    user = next(column for column in node["column"] if column["name"] == "user")
    user["as"] = "categorical"
    dataset = make(Table.parse(node), path, tmp_path / "set", eval_last=1, by="user")
    config = TrainConfig.from_options(
        data=str(tmp_path / "set"), model_dir=str(tmp_path / "model"), eval="none", batch_size=64
    )
    recommender = {
        "din": lambda: din.make(din.Config(embedding_dim=4, history=("past",)), dataset),
        "sasrec": lambda: sasrec.make(sasrec.Config(embedding_dim=4, history="past"), dataset),
        "two_tower": lambda: two_tower.make(
            two_tower.Config(embedding_dim=4, history="past"), dataset
        ),
    }[name]()
    summary = Trainer(recommender, dataset, config, EmbeddedCluster()).fit().summary
    assert summary["examples"] == dataset.splits["train"].rows
