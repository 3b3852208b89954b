"""A declared table whose transforms stock ops can express, its records, and requests of them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from tests.serving.builders import Tensors

SCHEMA = """
missing = ["", "NA"]
[[column]]
name = "bought"
as = "label"
[[column]]
name = "time"
as = "timestamp"
type = "seconds"
[[column]]
name = "price"
as = "numeric"
transform = ["log1p", { clip = [0.5, 4] }, "standardize"]
[[column]]
name = "the age"
as = "numeric"
type = "integer"
[[column]]
name = "item"
as = "categorical"
type = "integer"
transform = [{ hash = 50 }]
[[column]]
name = "site"
as = "categorical"
type = "hex"
transform = [{ min_count = 8 }]
[[column]]
name = "pages"
as = "list"
type = "hex"
separator = "|"
transform = [{ min_count = 30 }]
[[column]]
name = "rare"
as = "categorical"
type = "integer"
transform = [{ min_count = 100000 }]
[[column]]
name = "wishes"
as = "list"
type = "integer"
separator = "|"
[[feature]]
name = "age_group"
from = "the age"
transform = [{ bucketize = [18, 40, 65] }, { hash = 3 }]
[[feature]]
name = "item_site"
cross = ["item", "site"]
[[feature]]
name = "hour"
from = "time"
transform = ["hour"]
[[feature]]
name = "day"
from = "time"
transform = ["weekday"]
[[feature]]
name = "days_left"
from = "time"
transform = [{ age = 2026-01-01 }]
"""
LISTS = ("pages", "wishes")


def make_records(rows: int) -> list[dict[str, str]]:
    rng = np.random.default_rng(3)
    sites = [f"{site:x}" for site in rng.integers(0, 2**64 - 2, 9, np.uint64)] + [
        "00",
        "0" * 9 + "aBc",
        "",
        "NA",
    ]
    return [
        {
            "bought": str(rng.integers(0, 2)),
            "time": str(rng.integers(-(10**8), 2 * 10**9)),
            "price": rng.choice(["", "NA", "-3.5", f"{rng.lognormal():.4f}"]),
            "the age": rng.choice(["", str(rng.integers(-3, 90))]),
            "item": rng.choice(["", str(rng.integers(0, 2**63))]),
            "site": rng.choice([*sites, f"{rng.integers(0, 2**40):x}"]),
            "pages": "|".join(rng.choice(sites[:-2], rng.integers(0, 4))),
            "rare": str(rng.integers(0, 9)),
            "wishes": "|".join(map(str, rng.integers(0, 30, rng.integers(0, 3)))),
        }
        for _ in range(rows)
    ]


def write_csv(path: Path, records: list[dict[str, str]]) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, records[0])
        writer.writeheader()
        writer.writerows(records)
    return path


def request_of(records: list[dict[str, str]]) -> Tensors:
    """The tensors of the schema's columns."""

    def numbers(name: str) -> Any:
        return np.array(
            [float("nan") if r[name] in ("", "NA") else float(r[name]) for r in records]
        )

    lists = {name: [r[name].split("|") if r[name] else [] for r in records] for name in LISTS}
    return {
        "time": np.array([int(r["time"]) for r in records]),
        "price": numbers("price"),
        "the_age": numbers("the age"),
        "item": np.array([int(r["item"] or -1) for r in records]),
        "site": np.array([r["site"].encode() for r in records], object),
        "pages": np.array([text.encode() for each in lists["pages"] for text in each], object),
        "wishes": np.array([int(text) for each in lists["wishes"] for text in each]),
        "rare": np.array([int(r["rare"]) for r in records]),
        **{f"{name}_lengths": np.array(list(map(len, lists[name]))) for name in LISTS},
    }
