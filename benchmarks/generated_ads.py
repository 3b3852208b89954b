"""Generates a log of ad clicks that depend on a few numbers strongly, and not monotonically."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

NUMBERS = ("hour", "age", "price", "dwell", "depth", "rate")
IDS = ("city", "device", "category", "campaign")
SCHEMA = f"""\
format = "csv"
header = true

[[column]]
name = "clicked"
as = "label"

[[column]]
names = {list(NUMBERS)}
as = "numeric"
type = "float"
transform = ["standardize"]

[[column]]
names = {list(IDS)}
as = "categorical"
type = "integer"
"""
DEVICES, CATEGORIES, CITIES, CAMPAIGNS = 5, 40, 3000, 800


def write_ads(folder: Path, rows: int, seed: int) -> tuple[str, str]:
    """Writes a log and its schema; gives the paths of the schema and of the log.

    The hour acts as a wave, the age as a peak and a dip, the price as a band; dwell time acts
    together with depth and with the click rate, and the hour with the device. 5% of the prices are
    missing. A fifth of the rows are clicks, almost all by what the row shows: the best AUC is about
    0.98.
    """
    rng = np.random.default_rng(seed)
    hour, age = rng.uniform(0, 24, rows), rng.gamma(6, 6, rows)
    price, dwell = np.exp(rng.normal(2, 1.2, rows)), rng.exponential(30, rows)
    depth, rate = rng.integers(0, 20, rows), rng.beta(2, 20, rows)
    city = np.minimum(rng.zipf(1.3, rows), CITIES)
    campaign = np.minimum(rng.zipf(1.2, rows), CAMPAIGNS)
    device, category = rng.integers(0, DEVICES, rows), rng.integers(0, CATEGORIES, rows)
    logit = (
        2.5 * np.cos((hour - 20) / 12 * 2 * np.pi)
        + 3.0 * np.exp(-(((age - 30) / 6) ** 2))
        - 3.0 * np.exp(-(((age - 50) / 5) ** 2))
        + 2.0 * (np.abs(np.log(price) - 2) < 0.7)
        - 2.5 * ((dwell > 20) & (depth < 6))
        + 3.0 * ((dwell < 8) & (rate > 0.08))
        + 2.0 * np.sign(hour - 12) * (device == 2)
        + rng.normal(0, 0.8, CITIES + 1)[city]
        + rng.normal(0, 0.8, CAMPAIGNS + 1)[campaign]
        + rng.normal(0, 1.8, [CATEGORIES, DEVICES])[category, device]
    )
    logit = 2.2 * (logit - np.quantile(logit, 0.8))
    clicked = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)
    is_missing = rng.random(rows) < 0.05
    numbers = np.stack([hour, age, price, dwell, depth, rate], 1)
    ids = np.stack([city, device, category, campaign], 1)
    log, schema = folder / "ads.csv", folder / "ads.toml"
    schema.write_text(SCHEMA)
    with open(log, "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["clicked", *NUMBERS, *IDS])
        for label, of_row, missing, id_row in zip(clicked, numbers, is_missing, ids, strict=True):
            shown = [f"{number:.6g}" for number in of_row]
            if missing:
                shown[2] = ""
            lines.writerow([label, *shown, *id_row])
    return str(schema), str(log)
