"""A declared table of every kind of column, its records, and datasets made of them."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedps.data.dataset import Dataset
from embedps.features.table_schema import Table
from embedps.pipelines.ingestion.make_dataset import make_dataset
from embedps.pipelines.ingestion.options import HeldOut, Options

SHOP = """
delimiter = ","
quote = '"'
missing = ["", "NA"]

[[column]]
name = "bought"
as = "label"

[[column]]
name = "price"
as = "numeric"
transform = [{ clip = [0, 50] }, "standardize"]

[[column]]
name = "age"
as = "numeric"
type = "integer"

[[column]]
name = "shop"
as = "categorical"
type = "string"
transform = [{ min_count = 3 }]

[[column]]
name = "item"
as = "categorical"
type = "integer"
transform = [{ hash = 1000 }]

[[column]]
name = "tags"
as = "list"
type = "string"
separator = "|"
transform = [{ min_count = 20 }]

[[column]]
name = "weight"
as = "weight"

[[column]]
name = "user"
as = "key"
type = "hex"

[[column]]
name = "comment"
as = "ignore"

[[feature]]
name = "age_group"
from = "age"
transform = [{ bucketize = [18, 40, 65] }]

[[feature]]
name = "shop_item"
cross = ["shop", "item"]
transform = [{ min_count = 2 }]
"""
NAMES = ("user", "comment", "bought", "price", "age", "shop", "item", "tags", "weight")


def load(tmp_path: Path, text: str = SHOP) -> Table:
    """The table of a schema."""
    path = tmp_path / "shop.toml"
    path.write_text(text)
    return Table.load(str(path))


def make_records(num_rows: int, seed: int = 0) -> list[dict[str, str]]:
    """Records as their texts are in a file, some values missing."""
    rng = np.random.default_rng(seed)
    return [
        {
            "user": f"{rng.integers(0, 40):x}",
            "comment": 'said "no, thanks"',
            "bought": str(rng.integers(0, 2)),
            "price": "" if rng.random() < 0.1 else f"{rng.normal(30, 25):.3f}",
            "age": "NA" if rng.random() < 0.2 else str(rng.integers(5, 90)),
            "shop": "" if rng.random() < 0.1 else f"shop, {rng.zipf(1.5)}",
            "item": str(rng.integers(-5, 30)),
            "tags": "|".join(f"é{tag}" for tag in rng.integers(0, 30, rng.integers(0, 4))),
            "weight": f"{rng.random():.2f}",
        }
        for _ in range(num_rows)
    ]


def write_csv(path: Path, records: list[dict[str, str]], names: tuple[str, ...] = NAMES) -> Path:
    """Writes records to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    return path


def make(table: Table, logs: Path | str, output: Path, **settings: Any) -> Dataset:
    """Runs the job on logs."""
    settings.setdefault("num_shards", 3)
    names = [field.name for field in dataclasses.fields(HeldOut) if field.name in settings]
    held_out = HeldOut(**{name: settings.pop(name) for name in names})
    options = Options(
        input=(str(logs),), output=output, declared=table, held_out=held_out, **settings
    )
    dataset, _ = make_dataset(options)
    return dataset


def bad_lines(dataset_or_path: Dataset | Path) -> list[dict[str, Any]]:
    """What was set aside."""
    root = dataset_or_path if isinstance(dataset_or_path, Path) else dataset_or_path.directory
    return [json.loads(line) for line in (root / "_bad_lines.jsonl").open()]


def as_rows(table: pa.Table) -> list[str]:
    """Rows without their order."""
    return sorted(map(repr, table.to_pylist()))


def as_texts(records: list[dict[str, str]]) -> pa.RecordBatch:
    """Records as the plain function takes them."""
    return pa.RecordBatch.from_pylist(records, schema=pa.schema([(n, pa.string()) for n in NAMES]))
