"""A dataset of few kinds of rows, each of which is in one split, is told from others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embedps
from embedps.data.repeated_rows import SPLIT_APART, are_split_apart
from embedps.pipelines import ingest


def make(
    folder: Path, *, eval_fraction: float = 0.2, split_key: tuple[str, ...] = (), **columns: Any
) -> embedps.Dataset:
    """Rows of a number that may be missing, an id and a label; other columns are not declared."""
    rng = np.random.default_rng(0)
    shop, click = rng.integers(0, 20, 1000), rng.integers(0, 2, 1000)
    price = np.where(shop == 3, np.nan, shop % 4)
    schema = {
        "format": "parquet",
        "column": [
            {"name": "click", "as": "label"},
            {"name": "price", "as": "numeric", "type": "float"},
            {"name": "shop", "as": "categorical", "type": "integer"},
        ],
    }
    known = {"click": click, "price": pa.array(price, from_pandas=True), "shop": shop}
    options: dict[str, Any] = {"split_key": split_key} if split_key else {}
    return embedps.Dataset.from_arrow(
        pa.table({**known, **columns}),
        folder,
        schema,
        eval_fraction=eval_fraction,
        num_shards=1,
        **options,
    )


def test_rows_of_few_kinds_are_split_apart(tmp_path: Path) -> None:
    assert are_split_apart(make(tmp_path / "few"))
    # A column that the schema leaves out tells records apart: both splits have rows of each kind.
    assert not are_split_apart(make(tmp_path / "numbered", number=np.arange(1000)))
    assert not are_split_apart(make(tmp_path / "shops", split_key=("shop",)))


@pytest.mark.parametrize("eval_fraction", [0.0, 0.2])
def test_rows_that_differ_are_not(tmp_path: Path, eval_fraction: float) -> None:
    prices: dict[str, Any] = {"price": np.random.default_rng(1).normal(0, 1, 1000)}
    assert not are_split_apart(make(tmp_path / "set", eval_fraction=eval_fraction, **prices))


def test_of_lists_and_of_no_held_out_rows_it_is_not_known(tmp_path: Path) -> None:
    assert not are_split_apart(make(tmp_path / "all", eval_fraction=0.0))
    rows = pa.table({"click": [0, 1] * 100, "tags": [[1], [1, 2]] * 100})
    schema = {
        "format": "parquet",
        "column": [
            {"name": "click", "as": "label"},
            {"name": "tags", "as": "list", "type": "integer"},
        ],
    }
    lists = embedps.Dataset.from_arrow(rows, tmp_path / "lists", schema, eval_fraction=0.5)
    assert not are_split_apart(lists)


def test_ingest_tells_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    rows = pa.table({"click": rng.integers(0, 2, 500), "shop": rng.integers(0, 20, 500)})
    pq.write_table(rows, tmp_path / "rows.parquet")
    (tmp_path / "schema.toml").write_text(
        'format = "parquet"\n'
        '[[column]]\nname = "click"\nas = "label"\n'
        '[[column]]\nname = "shop"\nas = "categorical"\ntype = "integer"\n'
    )
    flags = [f"--schema={tmp_path}/schema.toml", f"--input={tmp_path}/rows.parquet"]
    ingest.main([*flags, f"--output={tmp_path}/set", "--num-shards=1"])
    assert capsys.readouterr().out.count(SPLIT_APART[:50]) == 1
