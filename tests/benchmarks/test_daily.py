"""A model's days, in short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import daily, layout
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.errors import UsageError


def run_here(function: str, **arguments: Any) -> Any:
    assert function == "benchmarks.daily:run_days"
    return daily.run_days(**arguments)


def test_each_way_trains_its_days_and_is_scored_on_the_next(tmp_path: Path) -> None:
    config = daily.Config(days=2, rows=2000, new_feature_day=2, batch_size=256)
    results = daily.measure(config, tmp_path, call=run_here)
    days = {name: run["days"] for name, run in results["runs"].items()}
    examples = {name: [each["examples"] // 2000 for each in run] for name, run in days.items()}
    assert examples == {
        "continue": [1, 1],
        "scratch": [1, 2],
        "added": [1, 1],
        "weekly": [0, 2],
    }
    assert [each["auc"] is None for each in days["weekly"]] == [True, False]
    assert days["continue"][0]["auc"] == days["scratch"][0]["auc"] > 0.5
    assert days["continue"][1]["rows"] == days["scratch"][1]["rows"]  # of the ids of all days

    def tables(name: str) -> set[str]:
        manifest = CheckpointDirectory(tmp_path / name).latest()
        return {table["name"] for table in manifest.tables} if manifest else set()

    assert tables("added-01") == {"item", "place"}
    assert tables("added-02") == tables("scratch-02") == {"item", "place", "segment"}
    with_next = Dataset.open(tmp_path / "02-02-with")
    assert [path.name for path in with_next.paths("eval")] == ["03.parquet"]
    assert 0.6 < results["planted_auc"] < 0.9
    content = {"results": results, "config": {"rows": 2000}}
    assert "| 2 | " in layout.markdown(daily.layout(content))


def test_the_limits_are_told() -> None:
    def content(behind: float, cost: float) -> dict[str, Any]:
        return {
            "results": {
                "auc_behind_scratch": {"mean": behind},
                "cost_of_scratch": {"last_day": cost},
            }
        }

    assert daily.failure(content(0.001, 0.1)) is None
    assert "behind the AUC" in str(daily.failure(content(0.0011, 0.1)))
    assert "costs 0.11" in str(daily.failure(content(0.0, 0.11)))
    with pytest.raises(UsageError, match="one of the 3 days but is 4"):
        daily.Config(days=3, new_feature_day=4)
