"""Generates small datasets of the kinds on which defaults were found to be behind baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from embedps.data.dataset import Dataset

Array = npt.NDArray[Any]


def _clicks(rng: np.random.Generator, logit: Array, share: float) -> Array:
    """Draws labels of which about this share is 1."""
    low, high = -50.0, 50.0
    for _ in range(60):
        shift = (low + high) / 2
        low, high = (
            (low, shift) if np.mean(1 / (1 + np.exp(-logit - shift))) > share else (shift, high)
        )
    return (rng.random(len(logit)) < 1 / (1 + np.exp(-logit - shift))).astype("i8")


def _app_usage(rng: np.random.Generator) -> dict[str, Array]:
    """Ten ids per row; a user's taste for an app, and an app's for the context."""
    rows, users, apps = 40_000, 900, 3_000
    context = {"daytime": 7, "weekday": 7, "weekend": 2, "homework": 3, "cost": 2}
    context |= {"weather": 9, "country": 80, "city": 230}
    ids = {
        "user": np.minimum(rng.zipf(1.3, rows), users) - 1,
        "app": np.minimum(rng.zipf(1.2, rows), apps) - 1,
        **{name: rng.integers(0, size, rows) for name, size in context.items()},
    }
    taste = [rng.normal(0, 0.9, [size, 4]) for size in (users, apps)]
    logit = (taste[0][ids["user"]] * taste[1][ids["app"]]).sum(1)
    logit += rng.normal(0, 1, apps)[ids["app"]]
    for name in ("daytime", "weekday", "cost"):
        logit += rng.normal(0, 0.8, [apps, context[name]])[ids["app"], ids[name]]
    return {**ids, "clicked": _clicks(rng, 1.5 * logit, 0.33)}


def _coupons(rng: np.random.Generator) -> dict[str, Array]:
    """Few strong categories, which act in pairs."""
    rows, sizes = 12_000, (3, 3, 2, 3, 5, 5, 2, 2, 8, 5, 2, 6, 25, 9, 5, 5, 5, 5, 5, 2)
    ids = {f"c{i}": rng.integers(0, size, rows) for i, size in enumerate(sizes)}
    logit = np.zeros(rows)
    for i, size in enumerate(sizes):
        logit += rng.normal(0, 0.35, size)[ids[f"c{i}"]]
    for a, b in ((4, 5), (4, 3), (1, 5), (5, 13), (0, 4), (12, 4)):
        logit += rng.normal(0, 0.9, [sizes[a], sizes[b]])[ids[f"c{a}"], ids[f"c{b}"]]
    return {**ids, "clicked": _clicks(rng, logit, 0.57)}


def _rare_clicks(rng: np.random.Generator) -> dict[str, Array]:
    """Clicks of 0.4% of the rows, by time of day, a few numbers and ids."""
    rows = 60_000
    hour, age, income = rng.uniform(0, 24, rows), rng.gamma(6, 6, rows), rng.normal(50, 12, rows)
    dwell = rng.exponential(30, rows)
    ids = {"site": np.minimum(rng.zipf(1.2, rows), 2000), "ad": rng.integers(0, 60, rows)}
    logit = 2 * np.cos((hour - 20) / 12 * np.pi) + 3 * (dwell > 60) - 3 * (income > 55)
    logit += 2 * np.abs(age - 36) / 15 + rng.normal(0, 0.7, 2001)[ids["site"]]
    logit += rng.normal(0, 0.7, 60)[ids["ad"]]
    numbers = {"hour": hour, "age": age, "income": income, "dwell": dwell}
    return {**numbers, **ids, "clicked": _clicks(rng, 1.5 * logit, 0.004)}


SHAPES: Mapping[str, Callable[[np.random.Generator], dict[str, Array]]] = {
    "app usage": _app_usage,
    "coupons": _coupons,
    "rare clicks": _rare_clicks,
}


def write_shape(name: str, directory: Path, *, seed: int = 7) -> Dataset:
    """Writes a dataset with a fifth of its rows in the eval split."""
    columns = SHAPES[name](np.random.default_rng(seed))
    floats = [n for n, values in columns.items() if values.dtype.kind == "f"]
    ids = [n for n in columns if n not in (*floats, "clicked")]
    declared: list[dict[str, Any]] = [{"name": "clicked", "as": "label"}]
    if floats:
        numeric = {"names": floats, "as": "numeric", "type": "float"}
        declared.append({**numeric, "transform": ["standardize"]})
    declared.append({"names": ids, "as": "categorical", "type": "integer"})
    table = pa.table({n: v.astype("f4") if n in floats else v for n, v in columns.items()})
    schema = {"format": "parquet", "column": declared}
    return Dataset.from_arrow(table, directory, schema, eval_fraction=0.2, num_shards=1)
