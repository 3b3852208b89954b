"""A row's split follows from its content and the seed, and from nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pipelines.parse import ParsedRows
from pipelines.row_hash import hash_rows, is_eval


def make_rows(num_rows: int, seed: int = 0) -> ParsedRows:
    rng = np.random.default_rng(seed)
    return ParsedRows(
        labels=rng.integers(0, 2, num_rows).astype(np.float32),
        integers=rng.integers(-2, 1000, (13, num_rows)),
        ids=rng.integers(-1, 1 << 32, (26, num_rows)),
    )


def take(rows: ParsedRows, at: np.ndarray) -> ParsedRows:
    return ParsedRows(
        labels=rows.labels[at],
        integers=np.ascontiguousarray(rows.integers[:, at]),
        ids=np.ascontiguousarray(rows.ids[:, at]),
    )


def test_hash_does_not_depend_on_order_or_neighbours():
    rows = make_rows(500)
    at = np.random.default_rng(1).permutation(500)[:200]
    np.testing.assert_array_equal(hash_rows(take(rows, at), 3), hash_rows(rows, 3)[at])


@pytest.mark.parametrize("column", ["labels", "integers", "ids"])
def test_hash_changes_with_every_field(column: str):
    rows = make_rows(50)
    before = hash_rows(rows, 0)
    values = getattr(rows, column)
    for i in range(1 if column == "labels" else len(values)):
        changed = values.copy()
        if column == "labels":
            changed = 1 - changed
        else:
            changed[i] += 1
        after = hash_rows(dataclasses.replace(rows, **{column: changed}), 0)
        assert (before != after).all()


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.999])
def test_held_out_share_is_the_fraction(fraction: float):
    held_out = is_eval(make_rows(40_000), 7, fraction).mean()
    # Five standard deviations of a binomial share.
    assert abs(held_out - fraction) <= 5 * np.sqrt(fraction * (1 - fraction) / 40_000)


def test_seeds_give_independent_splits():
    rows = make_rows(40_000)
    first, second = is_eval(rows, 0, 0.3), is_eval(rows, 1, 0.3)
    assert abs((first & second).mean() - 0.09) < 5 * np.sqrt(0.09 * 0.91 / 40_000)


def test_larger_fraction_holds_out_the_same_rows_and_more():
    rows = make_rows(5_000)
    small, large = is_eval(rows, 0, 0.1), is_eval(rows, 0, 0.2)
    assert (large[small]).all()
