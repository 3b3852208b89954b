"""A shop: declared tables of every kind of column, their records, and datasets made of them."""

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
column = [
  { name = "bought", as = "label" },
  { name = "price", as = "numeric", transform = [{ clip = [0, 50] }, "standardize"] },
  { name = "age", as = "numeric", type = "integer" },
  { name = "shop", as = "categorical", type = "string", transform = [{ min_count = 3 }] },
  { name = "item", as = "categorical", type = "integer", transform = [{ hash = 1000 }] },
  { name = "tags", as = "list", separator = "|", type = "string", transform = [{min_count = 20}] },
  { name = "weight", as = "weight" },
  { name = "user", as = "key", type = "hex" },
  { name = "comment", as = "ignore" },
]
feature = [
  { name = "age_group", from = "age", transform = [{ bucketize = [18, 40, 65] }] },
  { name = "shop_item", cross = ["shop", "item"], transform = [{ min_count = 2 }] },
]
"""
NAMES = ("user", "comment", "bought", "price", "age", "shop", "item", "tags", "weight")
# What stock ops can transform: no texts.
RAW = """
missing = ["", "NA"]
column = [
  { name = "bought", as = "label" },
  { name = "time", as = "timestamp", type = "seconds" },
  { name = "price", as = "numeric", transform = ["log1p", { clip = [0.5, 4] }, "standardize"] },
  { name = "the age", as = "numeric", type = "integer" },
  { name = "code", as = "categorical", type = "integer", transform = [{ hash = 50 }] },
  { name = "site", as = "categorical", type = "hex", transform = [{ min_count = 8 }] },
  { name = "pages", as = "list", type = "hex", separator = "|", transform = [{ min_count = 30 }] },
  { name = "rare", as = "categorical", type = "integer", transform = [{ min_count = 100000 }] },
  { name = "wishes", as = "list", type = "integer", separator = "|", cut = -1 },
]
feature = [
  { name = "age_group", from = "the age", transform = [{ bucketize = [18, 40, 65] }, {hash = 3}] },
  { name = "code_site", cross = ["code", "site"] },
  { name = "hour", from = "time", transform = ["hour"] },
  { name = "day", from = "time", transform = ["weekday"] },
  { name = "days_left", from = "time", transform = [{ age = 2026-01-01 }] },
]
"""
RAW_NAMES = ("bought", "time", "price", "the age", "code", "site", "pages", "rare", "wishes")


def load(tmp_path: Path, text: str = SHOP) -> Table:
    """The table of a schema; of another format than CSV, without the settings of CSV."""
    if text.startswith("format = "):
        text = text.replace('delimiter = ","', "").replace("quote = '\"'", "")
    path = tmp_path / "shop.toml"
    path.write_text(text)
    return Table.load(str(path))


def make_records(num_rows: int, seed: int = 0) -> list[dict[str, str]]:
    """Records of both schemas, as their texts are in a file, some values missing."""
    rng, raw = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    sites = [f"{site:x}" for site in raw.integers(0, 2**64 - 2, 9, np.uint64)]
    sites += ["00", "0" * 9 + "aBc"]
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
            "time": str(raw.integers(-(10**8), 2 * 10**9)),
            "the age": raw.choice(["", "NA", str(raw.integers(-3, 90))]),
            "code": raw.choice(["", str(raw.integers(0, 2**63))]),
            "site": raw.choice([*sites, "", "NA", f"{raw.integers(0, 2**40):x}"]),
            "pages": "|".join(raw.choice(sites, raw.integers(0, 4))),
            "rare": str(raw.integers(0, 9)),
            "wishes": "|".join(map(str, raw.integers(0, 30, raw.integers(0, 3)))),
        }
        for _ in range(num_rows)
    ]


def write_csv(path: Path, records: list[dict[str, str]], names: tuple[str, ...] = NAMES) -> Path:
    """Writes the named columns of records to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    return path


def options_of(table: Table | str, logs: Path | str, output: Path, **settings: Any) -> Options:
    """Options of the job on logs, of a table that is declared or of a schema that comes along."""
    settings["schema" if isinstance(table, str) else "declared"] = table
    settings.setdefault("num_shards", 3)
    names = [field.name for field in dataclasses.fields(HeldOut) if field.name in settings]
    held_out = HeldOut(**{name: settings.pop(name) for name in names})
    return Options(input=(str(logs),), output=output, held_out=held_out, **settings)


def make(table: Table | str, logs: Path | str, output: Path, **settings: Any) -> Dataset:
    """Runs the job on logs."""
    dataset, _ = make_dataset(options_of(table, logs, output, **settings))
    return dataset


def bad_lines(dataset_or_path: Dataset | Path) -> list[dict[str, Any]]:
    """What was set aside."""
    root = dataset_or_path if isinstance(dataset_or_path, Path) else dataset_or_path.directory
    return [json.loads(line) for line in (root / "_bad_lines.jsonl").open()]


def as_rows(table: pa.Table) -> list[str]:
    """Rows without their order."""
    return sorted(map(repr, table.to_pylist()))


def as_texts(records: list[dict[str, str]], names: tuple[str, ...] = NAMES) -> pa.RecordBatch:
    """Records as the plain function takes them."""
    return pa.RecordBatch.from_pylist(records, schema=pa.schema([(n, pa.string()) for n in names]))


def make_raw(directory: Path) -> Dataset:
    """A dataset of values that stock ops can transform."""
    logs = write_csv(directory / "log.csv", make_records(600), RAW_NAMES)
    return make(load(directory, RAW), logs, directory / "set")
