"""Pairs of columns that act together on the label are found; others are not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

import embedps
from embedps.data import acting_pairs as acting_pairs_module
from embedps.data import number_bins
from embedps.data.acting_pairs import acting_pairs, rank_pairs
from embedps.layers.id_hash import Bins
from embedps.models import logistic_regression
from embedps.models._columns import crossed_columns

Columns = dict[str, Any]


def make_rows(seed: int, *, strength: float, rows: int = 6000) -> tuple[Any, Columns]:
    """Labels by each column, and by a and b together; ids have no order and are of any size."""
    rng = np.random.default_rng(seed)
    sizes = {"a": 6, "b": 9, "c": 5, "d": 4}
    codes = {name: rng.integers(0, size, rows) for name, size in sizes.items()}
    logit = sum(rng.normal(0, 0.7, size)[codes[name]] for name, size in sizes.items())
    logit = logit + strength * rng.normal(0, 1, [6, 9])[codes["a"], codes["b"]]
    labels = (rng.random(rows) < 1 / (1 + np.exp(1 - logit))).astype(np.float64)
    ids = rng.integers(-(2**62), 2**62, 10)
    return labels, {name: ids[code] for name, code in codes.items()}


@pytest.mark.parametrize("seed", range(5))
def test_pair_that_acts_together_is_the_first(seed: int) -> None:
    labels, columns = make_rows(seed, strength=0.8)
    assert rank_pairs(labels, columns, 3)[0] == ("a", "b")
    assert rank_pairs(labels, columns, 0) == ()


def test_columns_that_act_alone_make_no_pairs() -> None:
    for seed in range(20):
        labels, columns = make_rows(seed, strength=0)
        assert rank_pairs(labels, columns, 10) == ()


def make_dataset(
    folder: Path, clicks: Any, numbers: Mapping[str, Any], **ids: Any
) -> embedps.Dataset:
    """Rows to train on, of numbers and single ids: [n] each."""
    arrays = {n: pa.array(v, pa.float32(), from_pandas=True) for n, v in numbers.items()}
    columns = [
        {"name": "click", "as": "label"},
        {"names": [*numbers], "as": "numeric", "type": "float"},
        *({"name": name, "as": "categorical", "type": "integer"} for name in ids),
    ]
    table = pa.table({"click": clicks, **arrays, **ids})
    schema = {"column": columns}
    return embedps.Dataset.from_arrow(table, folder, schema, eval_fraction=0, num_shards=1)


def test_numbers_act_by_their_bins(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x, y, z = rng.normal(0, 2, 8000), rng.exponential(1, 8000), rng.normal(0, 1, 8000)
    x[::50] = np.nan
    columns = {"x": x, "y": y, "z": z, "same": np.ones(8000), "none": np.full(8000, np.nan)}
    kinds = rng.integers(0, 4, 8000)
    logit = 3.0 * ((y > 1) & (x > 0)) + 2.0 * (kinds == 1) * np.sign(z) - 1
    clicks = (rng.random(8000) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    dataset = make_dataset(tmp_path / "set", clicks, columns, kind=kinds)
    found = acting_pairs(dataset, 5)
    assert {tuple(name.partition("/")[0] for name in pair) for pair in found[:2]} == {
        ("x", "y"),
        ("kind", "z"),
    }
    width = float(next(n for n in found[0] + found[1] if n.startswith("x/")).partition("/")[2])
    assert width == pytest.approx(2 * 2 * 1.645 / 8, rel=0.05)  # from the 5th to the 95th
    # As `--cross` takes them.
    texts = tuple("+".join(pair) for pair in found)
    assert len(crossed_columns(logistic_regression.Config(cross=texts), dataset)) == len(texts)


def test_rank_is_by_the_table_of_two_columns() -> None:
    # 2 x 2 cells of 25 rows, half ones where the ids differ: all of the variance is of the pair.
    a, b = np.repeat([0, 0, 1, 1], 25), np.repeat([0, 1, 0, 1], 25)
    assert rank_pairs((a != b).astype(float), {"a": a, "b": b}, 1) == (("a", "b"),)
    assert rank_pairs(a.astype(float), {"a": a, "b": b}, 1) == ()


def test_labels_that_are_no_chances_make_no_pairs() -> None:
    labels, columns = make_rows(0, strength=0.8)
    assert rank_pairs(1 + 4 * labels, columns, 3) == ()


@pytest.mark.parametrize("rows", [0, 1, 50])
def test_of_one_label_or_no_rows_there_are_none(rows: int) -> None:
    ids = np.arange(rows)
    assert rank_pairs(np.zeros(rows), {"a": ids, "b": ids[::-1]}, 5) == ()


def test_dataset_gives_pairs_of_single_ids_of_rows_with_a_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, columns = make_rows(0, strength=0.8)
    labels[::7] = np.nan
    rows = [[i, i + 1] for i in range(len(labels))]
    schema = {
        "format": "parquet",
        "column": [
            {"name": "click", "as": "label", "optional": True},
            {"names": [*columns], "as": "categorical", "type": "integer"},
            {"name": "list", "as": "list", "type": "integer"},
        ],
    }
    table = pa.table({"click": pa.array(labels, from_pandas=True), **columns, "list": rows})
    dataset = embedps.Dataset.from_arrow(table, tmp_path / "set", schema, eval_fraction=0)
    assert acting_pairs(dataset, 2)[0] == ("a", "b")
    monkeypatch.setattr(number_bins, "_BATCH_ROWS", 1000)
    assert acting_pairs(dataset, 2)[0] == ("a", "b")
    monkeypatch.setattr(acting_pairs_module, "_MAX_CELLS", 6 * 150)  # of 4 columns
    assert acting_pairs(dataset, 2) == ()  # too few rows to tell


def test_copies_of_a_column_do_not_crowd_pairs_out(tmp_path: Path) -> None:
    labels, columns = make_rows(0, strength=0.8)
    renamed = {"a2": columns["a"] * 3 + 1, "b2": np.unique(columns["b"], return_inverse=True)[1]}
    assert rank_pairs(labels, {**columns, **renamed}, 9) == rank_pairs(labels, columns, 9)
    rng = np.random.default_rng(1)
    x, y = rng.normal(0, 2, 8000), rng.exponential(1, 8000)
    click = (rng.random(8000) < np.where((x > 0) == (y > 1), 0.8, 0.2)).astype(np.int64)
    x[::50] = np.nan
    numbers = {
        "x": x,
        "tenths": np.round(10 * x),
        "y": y,
        "minus": 5 - y,
        "code": rng.poisson(4, 8000),
    }
    dataset = make_dataset(tmp_path, click, numbers)
    assert len(acting_pairs(dataset, 9)) == 1
    assert [name.partition("/")[0] for name in number_bins.binned_numbers(dataset)] == [
        "x",
        "y",
        "code",
    ]
    (code,) = number_bins.code_numbers(dataset)
    made = crossed_columns(logistic_regression.Config(cross=(code,)), dataset)
    (bins,) = made["code_by_" + code.partition("/")[2]]
    features = {"numerics": tf.constant(np.stack(list(numbers.values()), 1), tf.float32)}
    assert isinstance(bins, Bins)
    ids = bins.ids(features).numpy()
    assert (
        len(np.unique(ids))
        == len(np.unique(numbers["code"]))
        == len({*zip(ids, numbers["code"], strict=True)})
    )


def test_pairs_of_near_copies_do_not_crowd_pairs_out() -> None:
    rng = np.random.default_rng(4)
    rows, sizes = 12_000, (6, 9, 12, 5)
    codes = [rng.integers(0, size, rows) for size in sizes]
    logit = sum(
        strength * rng.normal(0, 1, [sizes[i], sizes[j]])[codes[i], codes[j]]
        for i, j, strength in ((0, 1, 1.2), (2, 3, 0.6), (1, 3, 0.6))
    )
    labels = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float64)
    columns = {f"c{i}": code for i, code in enumerate(codes)}
    for i, code in enumerate(codes):
        columns[f"coarse{i}"] = code // 2
        for copy in range(3):
            noise = rng.integers(0, sizes[i], rows)
            columns[f"noisy{i}_{copy}"] = np.where(rng.random(rows) < 0.05, noise, code)
    found = rank_pairs(labels, columns, 10)
    assert {*found} == {("c0", "c1"), ("c2", "c3"), ("c1", "c3")}


def test_pair_of_ids_of_few_rows_does_not_hide_those_of_its_columns() -> None:
    rng = np.random.default_rng(2)
    users, items = np.minimum(rng.zipf(1.3, (2, 20_000)), 1000)
    hours, days = rng.integers(0, 7, (2, 20_000))
    taste = rng.normal(0, 1, [2, 1001, 4])
    logit = (taste[0][users] * taste[1][items]).sum(1) + rng.normal(0, 1, [1001, 7])[items, hours]
    labels = (rng.random(20_000) < 1 / (1 + np.exp(-logit))).astype(np.float64)
    columns = {"user": users, "item": items, "hour": hours, "day": days}
    found = rank_pairs(labels, columns, 2)
    assert {*found} == {("user", "item"), ("item", "hour")}
