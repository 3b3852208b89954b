"""Names bins of numbers, as `--cross` has them: `price/0.5` is price in bins of 0.5."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from embedps.data.arrow_errors import naming
from embedps.data.dataset import Dataset

MAX_ROWS = 200_000
_BATCH_ROWS = 1 << 16
_NUM_BINS = 8
"""Of a number, from its 5th to its 95th percentile: the cells of two have many rows each."""
_ROWS_PER_CODE = 5
_COPIED = 0.99
"""The correlation from which on a number is a copy of another, perhaps rounded or scaled."""
_EXACT = 1 << 22
"""Of so many bins, float32 still tells each from the next."""


def binned_numbers(dataset: Dataset) -> tuple[str, ...]:
    """Names all numbers that differ, each with the width of its bins.

    The bins of one that is a code are its values.

    Raises:
      DatasetError: a file cannot be read.
    """
    numbers = _numbers(dataset)
    copies = copied(numbers)
    return tuple(
        f"{name}/{width:g}"
        for name, values in numbers.items()
        if name not in copies and (width := _code_width(values) or _width(values))
    )


def code_numbers(dataset: Dataset) -> tuple[str, ...]:
    """Names the numbers that may be codes, such as an hour or a shop, with bins of one value each.

    They have few values, of many rows each on average. What two values have in common may not
    follow from how far they are apart.

    Raises:
      DatasetError: a file cannot be read.
    """
    numbers = _numbers(dataset)
    copies = copied(numbers)
    widths = {name: _code_width(numbers[name]) for name in numbers if name not in copies}
    return tuple(f"{name}/{width:g}" for name, width in widths.items() if width)


def in_bins(name: str, numbers: npt.NDArray[Any]) -> tuple[str, npt.NDArray[np.int64]]:
    """Gives a number's name with a width, and its bins; a number that hardly differs has one."""
    width = _width(numbers)
    if not width:
        return name, np.zeros(len(numbers), np.int64)
    bins = np.clip(np.floor(numbers.astype(np.float64) / width), -(2.0**31), 2.0**31)
    return f"{name}/{width:g}", np.where(np.isnan(numbers), 1 << 40, bins).astype(np.int64)


def copied(numbers: dict[str, npt.NDArray[Any]]) -> set[str]:
    """Names the columns of numbers that are copies of one before them: [n] each."""
    if not numbers:
        return set()
    scaled = []
    for values in numbers.values():
        known = np.isfinite(values)
        wide = np.where(known, values, 0).astype(np.float64)
        wide = np.where(known, wide - wide[known].mean(), 0) if known.any() else wide
        scaled.append(wide / (np.linalg.norm(wide) or 1))
    alike = np.abs(np.stack(scaled) @ np.stack(scaled).T) > _COPIED
    return {name for i, name in enumerate(numbers) if alike[i, :i].any()}


def first_rows(dataset: Dataset, names: list[str], most: int) -> dict[str, npt.NDArray[Any]]:
    """Reads columns of the first training rows; none if there are no rows.

    Raises:
      DatasetError: a file cannot be read.
    """
    parts, left = [], most
    for batch in _batches(dataset, names):
        parts.append(batch.slice(0, left))
        left -= parts[-1].num_rows
        if not left:
            break
    if not parts:
        return {}
    return {
        name: np.concatenate([part[name].to_numpy(zero_copy_only=False) for part in parts])
        for name in names
    }


def _numbers(dataset: Dataset) -> dict[str, npt.NDArray[Any]]:
    names = [column.name for column in dataset.numeric]
    return first_rows(dataset, names, MAX_ROWS) if names and "train" in dataset.splits else {}


def _width(numbers: npt.NDArray[Any]) -> float:
    """Gives the width of a number's bins; 0 if it hardly differs."""
    known = numbers[np.isfinite(numbers)]
    low, high = np.quantile(known, (0.05, 0.95)) if len(known) else (0.0, 0.0)
    width = float(f"{(high - low) / _NUM_BINS:.2g}")
    return width if 1e-30 < width < 1e30 else 0.0


def _code_width(numbers: npt.NDArray[Any]) -> float:
    """Gives a width of bins of one value each; 0 if a number has too many, or less than three."""
    known = numbers[np.isfinite(numbers)].astype(np.float64)
    values = np.unique(known)
    if not 3 <= len(values) <= len(known) / _ROWS_PER_CODE:
        return 0.0
    width = float(f"{0.9 * np.diff(values).min():.2g}")
    is_exact = 1e-30 < width < 1e30 and np.abs(values).max() < _EXACT * width
    return width if is_exact else 0.0


def _batches(dataset: Dataset, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for path in dataset.paths("train"):
        with naming(path), pq.ParquetFile(path) as file:
            yield from file.iter_batches(_BATCH_ROWS, columns=columns)
