"""Statistics while a run trains: its growth, forecasts of limits, and where they are written."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf

from embedps.checkpoint.format.row_hashes import row_hashes, shards_of
from embedps.checkpoint.tools.run_statistics import STATISTICS_NAME
from embedps.run.summary import read_json
from embedps.tables import SizeLimit
from embedps.tables.byte_limits import ServerLimit
from embedps.training.growth import Forecast, Growth, forecast_memory, hours_until
from embedps.training.table_report import points, texts
from embedps.training.table_watch import TableWatch
from tests.builders import make_trainer, read_tags, write_dataset
from tests.tables.builders import look, make_collection, make_table


class Clock:
    """A clock that the test sets."""

    secs = 1000.0

    def __call__(self) -> float:
        return self.secs


class Stream:
    """Looks up a known number of new ids per hour."""

    def __init__(
        self, tmp_path, per_hour: int, *, num_shards: int = 2, server_limit=None, **table
    ) -> None:
        self.clock, self.per_hour, self.next_id = Clock(), per_hour, 0
        self.collection = make_collection(
            [make_table(**table)], num_shards=num_shards, server_limit=server_limit
        )
        self.watch = TableWatch(
            self.collection, tmp_path, every_secs=60, share_machine=True, clock=self.clock
        )

    def pass_by(self, secs: float) -> None:
        """Looks up what comes in so many seconds."""
        self.clock.secs += secs
        count = round(self.per_hour * secs / 3600)
        new = tf.range(self.next_id, self.next_id + count, dtype=tf.int64)
        self.next_id += count
        look(self.collection, {"t": new}, insert=True)

    def run(self, looks: int, secs: float = 60) -> dict:
        for _ in range(looks):
            self.pass_by(secs)
            report = self.watch.look(step=self.next_id)
        return report

    def hours_until_full(self, field: str, limit: int) -> float:
        """Goes on until a shard has its part of the limit, and tells how long it took."""
        began = self.clock.secs
        part = limit / self.collection.num_shards
        while all(getattr(s.tables["t"], field) < part for s in self.collection.use()):
            self.pass_by(60)
        return (self.clock.secs - began) / 3600


@pytest.mark.parametrize(
    ("field", "limit", "table"),
    [
        ("rows", 100_000, {"capacity": 100_000}),
        ("rows", 100_000, {"eviction": (SizeLimit(max_rows=100_000),)}),
        ("bytes", 8_000_000, {}),
    ],
)
def test_a_forecast_is_within_10_percent_on_a_stream_of_known_growth(tmp_path, field, limit, table):
    stream = Stream(tmp_path, 60_000, **table)
    report = stream.run(looks=40)
    grown = report["tables"]["t"]
    assert grown["rows_per_hour"] == pytest.approx(60_000, rel=0.001)
    if table:
        (forecast,) = [each for each in report["forecasts"] if each["limit"] != "memory"]
        assert forecast["size"] == limit
        hours = forecast["hours"]
    else:
        # Without the limit: at it, the table would stop to grow a little below.
        shards = grown["shards"]
        hours = min((limit / 2 - s["bytes"]) / s["bytes_per_hour"] for s in shards)
    assert hours == pytest.approx(stream.hours_until_full(field, limit), rel=0.1)


@pytest.mark.parametrize("of", ["table", "server"])
def test_a_forecast_of_a_byte_limit_is_within_10_percent(tmp_path, of):
    size = 50_000_000
    limit: dict[str, dict] = {
        "table": {"eviction": (SizeLimit(max_bytes=size),)},
        "server": {"server_limit": ServerLimit(max_bytes=size)},
    }
    stream = Stream(tmp_path, 400_000, num_shards=1, **limit[of])
    (forecast,) = [each for each in stream.run(looks=40)["forecasts"] if each["limit"] != "memory"]
    began = stream.clock.secs
    while not stream.collection.eviction_stats()["t"]["limit"]:
        stream.pass_by(60)
    assert forecast["hours"] == pytest.approx((stream.clock.secs - began) / 3600, rel=0.1)


def test_a_limit_is_told_once_below_a_day_and_once_below_an_hour(tmp_path):
    stream = Stream(tmp_path, 60_000, num_shards=1, capacity=250_000)
    stream.run(looks=1, secs=59)
    assert stream.watch.warnings(left_hours=100) == []  # too early to say
    stream.run(looks=9)
    (line,) = stream.watch.warnings(left_hours=100)
    assert line == (
        "warning: table 't' reaches capacity 250,000 in 4.0 hours at its present growth"
    )
    assert stream.watch.warnings(left_hours=100) == []
    stream.run(looks=200)
    assert stream.watch.warnings(left_hours=0.1) == []  # the run ends before
    (line,) = stream.watch.warnings(left_hours=100)
    assert "in 40 minutes" in line
    stream.run(looks=60)
    assert stream.watch.warnings(left_hours=100) == []
    forecasts = json.loads((tmp_path / STATISTICS_NAME).read_text())["forecasts"]
    assert {"subject": "table 't'", "limit": "capacity", "size": 250_000, "hours": 0.0} in forecasts


def test_a_shard_whose_ids_were_chosen_is_told_once(tmp_path):
    stream = Stream(tmp_path, 60_000)
    stream.run(looks=1, secs=30)
    assert stream.watch.warnings(left_hours=math.inf) == []
    new = np.arange(1_000_000, 1_010_000)
    chosen = new[shards_of(row_hashes("t", new), 2) == 1]
    look(stream.collection, {"t": tf.constant(chosen)}, insert=True)
    stream.watch.look(step=1)
    (line,) = stream.watch.warnings(left_hours=0)
    assert line.startswith("warning: table 't': shard 1 of 2 has 9")
    assert "ids may be chosen for it" in line
    stream.watch.look(step=2)
    assert stream.watch.warnings(left_hours=0) == []


def test_memory_is_forecast_by_what_all_servers_of_a_machine_take(tmp_path):
    stream = Stream(tmp_path, 1000)
    (shard, _) = stream.collection.use()
    alone = forecast_memory([[shard], [shard]], [1e6, 3e6], share_machine=False)
    assert shard.available_bytes is not None
    assert [each.hours for each in alone] == [
        shard.available_bytes / 1e6,
        shard.available_bytes / 3e6,
    ]
    together = forecast_memory([[shard], [shard]], [1e6, 3e6], share_machine=True)
    assert [each.hours for each in together] == [shard.available_bytes / 4e6] * 2


def test_growth_is_that_of_the_later_half():
    growth = Growth()
    for minute in range(11):
        growth.add(60.0 * minute, [100.0 * min(minute, 5) + 10.0 * max(minute - 5, 0)])
    assert growth.per_hour() == pytest.approx([600.0])
    assert growth.observed_secs == 600


def test_growth_is_not_known_before_the_second_look():
    growth = Growth()
    growth.add(5.0, [1.0])
    assert np.isnan(growth.per_hour()).all()
    assert hours_until(5.0, float("nan")) is None


def test_forecasts_are_sentences():
    def text(hours: float | None, limit: str = "max_rows") -> str:
        return Forecast(subject="table 't'", limit=limit, size=1000, hours=hours).text()

    assert text(None) == "table 't' does not grow towards max_rows 1,000"
    assert text(0.0) == "table 't' is at max_rows 1,000"
    assert text(1.5, "memory") == "table 't' reaches its memory in 90 minutes at its present growth"


def test_a_run_leaves_its_statistics_in_the_summary_and_in_tensorboard(tmp_path):
    dataset = write_dataset(tmp_path / "data")
    trainer = make_trainer(dataset, tmp_path / "m", stats_secs=1e-3)
    summary = trainer.fit().summary
    statistics = summary["table_statistics"]
    assert statistics["step"] == trainer.ledger.steps_done()
    for name, table in statistics["tables"].items():
        assert table["rows"] == summary["tables"][name] == table["admitted"]
        assert table["scan"]["rows"] == table["rows"]
        assert table["ids_per_step"] == pytest.approx(table["lookups"] / statistics["step"])
        assert table["scan"]["updates"] == table["lookups"]
        assert len(table["hottest"]) <= 10
    whole = read_json(tmp_path / "m" / STATISTICS_NAME)
    name = max(summary["tables"], key=summary["tables"].get)
    assert len(whole["tables"][name]["hottest"]) == min(summary["tables"][name], 1000)
    assert statistics["servers"][0]["load"] == 1.0
    tags = read_tags(tmp_path / "m" / "tensorboard" / "tables")
    assert set(points(statistics)) | set(texts(statistics)) <= tags
    assert len(points(statistics)) <= 6 * len(statistics["tables"]) + 5 + 2
    of_model = read_tags(tmp_path / "m" / "tensorboard" / "train")  # a run of its own, as `eval`
    assert {"auc", "logloss"} <= of_model <= {"auc", "logloss", "examples_per_sec"}
