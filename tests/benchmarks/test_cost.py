"""What a million examples cost: how two measurements are split, and what a server is asked."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import cost
from benchmarks.layout import Table
from benchmarks.process_usage import Usage
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.serving.server import messages
from tests.benchmarks.builders import needs_ss, run_benchmark


def usage(start: float, each: float, examples: int) -> Usage:
    """What a step of so many examples uses, of every kind."""
    names = [field.name for field in dataclasses.fields(Usage)]
    return Usage(**dict.fromkeys(names, start + each * examples))


def test_what_a_start_costs_is_not_counted_as_the_examples():
    examples = (1000, 4000)
    measured = (usage(7, 0.5, examples[0]), usage(7, 0.5, examples[1]))
    of_million, start = cost.per_million(examples, measured)
    for found, expected in ((of_million, 0.5 * 10**6), (start, 7)):
        assert list(dataclasses.asdict(found).values()) == pytest.approx([expected] * 5)


def test_a_server_is_asked_for_records_of_the_training_split(clicks: Dataset):
    first, second, *_ = cost.make_requests(clicks, 3)
    table = pq.read_table(clicks.paths("train")[0])
    for request, begin in ((first, 0), (second, 3)):
        inputs = messages.PredictRequest.FromString(request).inputs
        names = [f.name for f in clicks.numeric] + [f.name for f in clicks.categorical]
        assert set(inputs) == set(names)
        for feature, dtype in ((clicks.numeric[0], np.float32), (clicks.categorical[-1], "i8")):
            sent = np.frombuffer(inputs[feature.name].tensor_content, dtype)
            np.testing.assert_array_equal(sent, table[feature.name].to_numpy()[begin : begin + 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": (5000, 5000)}, r"two numbers, the smaller first, but is \(5000, 5000\)"),
        ({"rows": (5000,)}, "two numbers"),
        ({"rates": (5,)}, "as many values but have 2 and 1"),
    ],
)
def test_numbers_that_cannot_be_compared_are_refused(options, message: str):
    with pytest.raises(UsageError, match=message):
        cost.Config(**options)


def test_the_table_has_a_billion_in_hours_and_where_a_million_goes():
    used = dict.fromkeys(("read_bytes", "written_bytes", "sent_bytes"), 5e6)
    results = {
        name: {
            "examples": [1000, 2000],
            "per_million": used | {"cpu_secs": secs, "kernel_secs": secs / 4},
            "start": used | {"cpu_secs": 2.0, "kernel_secs": 0.1},
        }
        for name, secs in (("ingest", 9.0), ("train, one process", 27.0), ("evaluate", 18.0))
    }
    results["save all rows"] = results["ingest"] | {
        "per_million": used | {"cpu_secs": 0.01, "kernel_secs": 0.02}
    }
    table, told = cost.layout({"results": results, "rows": [3, 5]})
    assert isinstance(table, Table)
    assert isinstance(told, str)
    rows = {row[0]: list(row[1:]) for row in table.rows}
    hour = datetime.timedelta(hours=1).total_seconds()
    assert rows["ingest"] == ["9.0", "25%", "5", "5", "5", "2.0", f"{9.0 * 1000 / hour:.1f}"]
    assert rows["save all rows"][1] == ""  # more in the kernel than in all: nothing to see
    assert "54 CPU seconds" in told
    assert "ingest: 17%; train, one process: 50%; evaluate: 33%" in told


@pytest.mark.slow
@pytest.mark.multiprocess
@needs_ss
def test_each_step_is_measured_as_its_processes(tmp_path: Path):
    flags = ("--rows=2000,6000", "--candidates=5", "--rates=50", "--secs=1")
    made = run_benchmark("cost", *flags, output=tmp_path / "cost.json")
    assert made["rows"][0] < made["rows"][1]
    results = made["results"]
    *steps, served = results
    assert steps == ["ingest", *cost._TRAIN, "evaluate", "save all rows"]
    for name in steps:
        few, many = results[name]["used"]
        assert few["cpu_secs"] > 0, json.dumps(results[name])
        assert many["read_bytes"] > few["read_bytes"] or name == "save all rows"
    clusters = results["train, 2 PS + 2 workers"]["used"]
    assert all(each["sent_bytes"] > 10_000 for each in clusters)
    bases = [each["written_bytes"] for each in results["save all rows"]["used"]]
    bytes_per_row = (bases[1] - bases[0]) / (made["rows"][1] - made["rows"][0])
    assert 4 * 16 < bytes_per_row < 4 * 16 * 2  # a row has 16 floats, and some numbers more
    assert results[served]["codes"] == {"OK": results[served]["examples"][0] // 5}
    assert results[served]["per_million"]["sent_bytes"] > 4 * 10**6  # a score has four bytes
