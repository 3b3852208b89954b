"""The digest of transforms: equal where values mean the same, however they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedps.data.transforms_digest import declared, difference, digest_of, learned_features

KEPT = np.array([3, 5, 9], np.int64)
TABLE: dict[str, Any] = {
    "name": "day1",
    "delimiter": ",",
    "missing": [""],
    "column": [
        {"name": "bought", "as": "label", "type": "number"},
        {"name": "price", "as": "numeric", "type": "float"},
        {"name": "shop", "as": "categorical", "type": "string"},
    ],
    "feature": [
        {
            "name": "price",
            "from": "price",
            "transform": [{"clip": [0, 50]}, {"standardize": {"mean": 20.0, "std": 0.1}}],
        },
        {"name": "shop", "from": "shop", "transform": [{"min_count": {"count": 2, "file": "f"}}]},
    ],
}


def digest(table: dict[str, Any], kept: Any = KEPT) -> str:
    return digest_of(table, lambda _: kept)


def test_writing_does_not_change_it() -> None:
    again = json.loads(json.dumps(TABLE, indent=3))
    again |= {"name": "day2", "delimiter": "\t", "missing": ["", "NA"], "format": "parquet"}
    again["column"] = [{"name": "x", "as": "ignore", "type": "string"}, *again["column"][::-1]]
    again["column"][2]["type"] = "integer"  # of a number: its value is the same
    again["feature"] = again["feature"][::-1]
    again["feature"][1]["transform"] = [
        {"clip": [0.0, 5e1]},
        {"standardize": {"std": float("0.1000000000000000055"), "mean": 20}},
    ]
    again["feature"][0]["transform"][0]["min_count"]["file"] = "elsewhere"
    assert digest(again) == digest(TABLE)
    assert len(digest(TABLE)) == 16
    assert learned_features(TABLE) == ("price", "shop")


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("feature", 0, "transform", 1, "standardize", "mean"), 20.000000000000004),
        (("feature", 0, "transform", 0), {"clip": [0, 51]}),
        (("feature", 0, "transform"), []),
        (("feature", 1, "transform", 0, "min_count", "count"), 3),
        (("feature", 1, "from"), "bought"),
        (("column", 2, "type"), "hex"),
        (("column", 0, "positive_from"), 4),
    ],
)
def test_what_changes_values_changes_it(where: tuple[Any, ...], value: Any) -> None:
    changed = json.loads(json.dumps(TABLE))
    node = changed
    for key in where[:-1]:
        node = node[key]
    node[where[-1]] = value
    assert digest(changed) != digest(TABLE)
    assert digest(TABLE, KEPT[:2]) != digest(TABLE)


def test_declared_has_nothing_that_was_learned() -> None:
    bare = json.loads(json.dumps(TABLE))
    bare["feature"][0]["transform"][1] = "standardize"
    bare["feature"][1]["transform"] = [{"min_count": 2}]
    assert declared(bare) == declared(TABLE)


def test_what_is_not_known_differs_from_nothing(tmp_path: Path) -> None:
    assert difference("", "a", made_of="D") == difference("a", "", made_of="D") == ""
    assert difference("a", "a", made_of="D") == ""
    assert difference("a", "b", made_of="D").endswith("pipelines.ingest --transforms-of D")
