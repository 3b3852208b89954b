"""Rows in memory become the dataset that a Parquet file of them gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset
from embedps.errors import DatasetError, UsageError
from embedps.features.table_schema import Table
from tests.pipelines.builders import files_of
from tests.pipelines.shop import make

SCHEMA: dict[str, Any] = {
    "column": [
        {"name": "clicked", "as": "label"},
        {"name": "user", "as": "key", "type": "integer", "keep": True},
        {"name": "shop", "as": "categorical", "type": "string"},
        {"name": "price", "as": "numeric", "transform": ["standardize"]},
        {"name": "tags", "as": "list", "type": "string"},
        {"name": "vector", "as": "float_list"},
    ]
}


def make_rows(num_rows: int = 300) -> pa.Table:
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 4, num_rows)
    tags = [[f"t{tag}" for tag in rng.integers(0, 9, n)] for n in lengths]
    return pa.table(
        {
            "clicked": rng.integers(0, 2, num_rows).astype(np.float32),
            "user": rng.integers(0, 50, num_rows),
            "shop": [f"é{shop}" for shop in rng.integers(0, 9, num_rows)],
            "price": rng.normal(size=num_rows).astype(np.float32),
            "tags": pa.array(tags, pa.list_(pa.string())),
            "vector": pa.array([*rng.normal(size=(num_rows, 3)).astype(np.float32)]),
        }
    )


def shards(directory: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(directory).items() if "_dataset" not in name}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset that the command makes of a Parquet file."""
    folder = tmp_path_factory.mktemp("plain")
    pq.write_table(make_rows(), folder / "a.parquet")
    table = Table.parse({"format": "parquet", **SCHEMA})
    make(table, folder / "a.parquet", folder / "set", split_key=("user",), num_shards=2)
    return folder / "set"


def as_tf_data(rows: pa.Table) -> tf.data.Dataset:
    columns: dict[str, Any] = {
        name: rows[name].to_numpy() for name in ("user", "shop", "price", "clicked")
    }
    columns["tags"] = tf.ragged.constant(rows["tags"].to_pylist(), dtype=tf.string)
    columns["vector"] = np.stack(rows["vector"].to_pylist()).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(columns)


def unbatched(rows: pa.Table) -> tf.data.Dataset:
    # A single row's ragged list is a tensor of one more dimension only.
    return as_tf_data(rows).map(lambda row: {**row, "tags": tf.identity(row["tags"])})


@pytest.mark.parametrize("kind", ["arrow", "batch", "pandas", "batches", "rows", "tuples"])
def test_rows_in_memory_give_the_bits_of_a_parquet_file(tmp_path: Path, plain: Path, kind: str):
    rows = make_rows()
    options: dict[str, Any] = {"split_key": ("user",), "num_shards": 2}
    given = (tmp_path / "set", SCHEMA)
    if kind == "arrow":
        made = embedps.Dataset.from_arrow(rows, *given, **options)
    elif kind == "batch":
        made = Dataset.from_arrow(rows.combine_chunks().to_batches()[0], *given, **options)
    elif kind == "pandas":
        made = Dataset.from_pandas(
            rows.to_pandas().set_index(np.arange(300)[::-1]), *given, **options
        )
    elif kind == "batches":
        made = Dataset.from_tf_data(as_tf_data(rows).batch(70), *given, **options)
    elif kind == "rows":
        made = Dataset.from_tf_data(unbatched(rows), *given, **options)
    else:
        schema = {"column": [{"name": "label", "as": "label"}, *SCHEMA["column"][1:]]}
        pairs = (
            as_tf_data(rows)
            .batch(70)
            .map(lambda row: ({n: v for n, v in row.items() if n != "clicked"}, row["clicked"]))
        )
        made = Dataset.from_tf_data(pairs, tmp_path / "set", schema, **options)
        renamed = rows.rename_columns(["label", *rows.column_names[1:]])
        other = Dataset.from_arrow(renamed, tmp_path / "other", schema, **options)
        assert shards(tmp_path / "set") == shards(tmp_path / "other")
        assert made.splits["eval"].rows == other.splits["eval"].rows > 0
        return
    assert shards(tmp_path / "set") == shards(plain)
    made.verify()
    read = embedps.read(made, "eval", batch_size=1000)
    assert sum(len(labels) for _, labels in read) == made.splits["eval"].rows > 0


def test_schema_may_be_a_file_or_be_proposed(tmp_path: Path):
    path = tmp_path / "a.toml"
    path.write_text(
        '[[column]]\nname = "clicked"\nas = "label"\n\n'
        '[[column]]\nname = "shop"\nas = "categorical"\ntype = "string"\n'
    )
    dataset = Dataset.from_arrow(make_rows(), tmp_path / "set", path)
    assert [column.name for column in dataset.categorical] == ["shop"]
    before = (tmp_path / "set/_dataset.json").stat().st_mtime_ns
    assert Dataset.from_arrow(make_rows(), tmp_path / "set", path) == dataset  # kept
    assert (tmp_path / "set/_dataset.json").stat().st_mtime_ns == before
    proposed = Dataset.from_pandas(make_rows().to_pandas(), tmp_path / "proposed")
    assert proposed.label == "clicked"
    assert {"shop", "tags"} <= {column.name for column in proposed.categorical}
    bought = make_rows().rename_columns({"clicked": "bought", "user": "person"})
    assert Dataset.from_arrow(bought, tmp_path / "given", label="bought").label == "bought"
    with pytest.raises(UsageError, match="label 'sold' must be one of the columns"):
        Dataset.from_arrow(bought, tmp_path / "no", label="sold")
    with pytest.raises(UsageError, match="leave out label='bought'"):
        Dataset.from_arrow(bought, tmp_path / "no", path, label="bought")


def test_data_frame_loses_nothing_in_silence(tmp_path: Path, capsys: Any):
    frame = make_rows().to_pandas()[["clicked", "user"]]
    frame["bin"] = pd.cut(frame.index.to_series() % 50, 5)
    frame["month"] = pd.period_range("2024-01", periods=len(frame), freq="M")
    frame["took"] = pd.to_timedelta(frame.index, unit="s").as_unit("us")
    frame["one"] = 1
    made = Dataset.from_pandas(frame.set_index("user"), tmp_path / "set")
    assert [column.name for column in made.categorical] == ["bin"]
    assert "the index user is left out: reset_index() makes it a column" in capsys.readouterr().err
    for name in range(20):
        frame[f"c{name}"] = frame["user"]
    table = pa.Table.from_pandas(frame.drop(columns="bin"))
    kinds = pa.array(["a", "b", None], pa.string_view())  # as Polars has them
    kind = pa.DictionaryArray.from_arrays(pa.array(np.arange(len(frame)) % 3, pa.uint32()), kinds)
    table = table.append_column("kind", kind)
    read = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    Dataset.from_arrow(read, tmp_path / "other")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "the schema is proposed of the rows: label clicked; categorical user, kind; numeric month, "
        "c0, c1, c2, c3, c4, c5, c6 and 13 more; left out took (no declaration reads values of "
        "duration[us]), one (it has one value, which tells a model nothing)"
    )


def test_rows_that_cannot_be_a_dataset_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rows = make_rows(20)
    with pytest.raises(
        UsageError,
        match="there is no option 'colour' of rows in memory, there are label, num_shards",
    ):
        Dataset.from_arrow(rows, tmp_path / "a", SCHEMA, colour=3)
    with pytest.raises(UsageError, match="rows must be an Arrow table or batch, got list"):
        Dataset.from_arrow([], tmp_path / "a", SCHEMA)
    with pytest.raises(UsageError, match=r"rows must be a pandas\.DataFrame, got dict"):
        Dataset.from_pandas({"x": [1]}, tmp_path / "a", SCHEMA)
    with pytest.raises(UsageError, match="rows must be a DataFrame that Arrow can hold"):
        Dataset.from_pandas(pd.DataFrame({"x": [1, "a", object()]}), tmp_path / "a", SCHEMA)
    with pytest.raises(DatasetError, match="must have columns shop"):
        Dataset.from_arrow(rows.drop_columns(["shop"]), tmp_path / "a", SCHEMA)
    assert not caplog.records  # Beam logs no traceback of what is raised
    for given, message in [
        (rows, "rows must be a tf.data.Dataset, got Table"),
        (as_tf_data(rows).repeat(), "repeats for ever"),
        (as_tf_data(rows).map(lambda row: row["user"]), r"got \(TensorSpec\)"),
        (as_tf_data(rows).map(lambda row: (row, row["user"], 1, 2)), "must have elements"),
        (
            as_tf_data(rows).map(lambda row: {"shop": tf.sparse.from_dense([row["user"]])}),
            "column 'shop' must be a dense or ragged tensor",
        ),
        (
            as_tf_data(rows)
            .batch(5)
            .map(lambda row: {"user": row["user"], "shop": row["shop"][:2]}),
            "must have as many rows each, got user 5, shop 2",
        ),
        (as_tf_data(rows).map(lambda row: (row, {"user": row["user"]})), "user is twice"),
    ]:
        with pytest.raises(UsageError, match=message):
            Dataset.from_tf_data(given, tmp_path / "b", SCHEMA)
