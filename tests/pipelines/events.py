"""Events of users: builders of them, of their files, and of ranges that cut them apart."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedps.pipelines.ingestion import sorted_runs, user_runs


def make_events(num_rows: int = 600, seed: int = 0) -> list[dict[str, Any]]:
    """Events in no order, with equal times; some have no user, some users one row, one most."""
    rng = np.random.default_rng(seed)
    users = ["", "bot", "bot", *(f"u{user}" for user in rng.zipf(1.3, 40))]
    return [
        {
            "number": number,
            "user": f"once{number}" if number % 20 == 7 else str(rng.choice(users)),
            "item": int(rng.integers(0, 30)),
            "time": int(rng.integers(0, 60)) - 20,
            "clicked": int(rng.integers(0, 2)),
        }
        for number in range(num_rows)
    ]


def write_events(path: Path, events: list[dict[str, Any]]) -> Path:
    """Writes records in the format of the suffix; lists in CSV with | between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(events), path, row_group_size=50)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
    else:
        with open(path, "w", newline="") as out:
            writer = csv.DictWriter(out, [*events[0]])
            writer.writeheader()
            writer.writerows(
                {k: "|".join(map(str, v)) if isinstance(v, list) else v for k, v in each.items()}
                for each in events
            )
    return path


def small_ranges(patch: pytest.MonkeyPatch) -> None:
    """Makes ranges and runs of a few rows, so that a user's rows are in several."""
    patch.setattr(user_runs, "RANGE_ROWS", 16)
    patch.setattr(user_runs, "_SAMPLE_ROWS", 2)
    patch.setattr(user_runs, "RUN_ROWS", 70)
    patch.setattr(user_runs, "BATCH_ROWS", 8)
    patch.setattr(sorted_runs, "BATCH_ROWS", 8)
