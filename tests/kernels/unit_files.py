"""Builders for the unit reader's tests: a Parquet file with every kind of column."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedps.data.unit_reader import Batch, UnitReader

NUM_ROWS = 1000
ROW_GROUP_ROWS = 230  # divides no other number here


def make_table(num_rows: int = NUM_ROWS) -> pa.Table:
    """Makes the required columns of a dataset, and the same kinds with nulls."""
    rng = np.random.default_rng(7)
    fields = [
        pa.field("label", pa.float32(), nullable=False),
        pa.field("I1", pa.float32(), nullable=False),
        pa.field("I2", pa.float64()),
        pa.field("C1", pa.int64(), nullable=False),
        pa.field("C2", pa.int32()),
        pa.field("tags", pa.list_(pa.int64())),
        pa.field("row", pa.int64(), nullable=False),
    ]
    i1 = rng.normal(size=num_rows).astype(np.float32)
    i1[::7] = np.nan
    i2 = [None if i % 5 == 0 else float(x) for i, x in enumerate(rng.normal(size=num_rows))]
    c2 = [None if i % 11 == 3 else int(x) for i, x in enumerate(rng.integers(0, 99, num_rows))]
    tags = [make_list(i, rng) for i in range(num_rows)]
    columns = [
        pa.array(rng.integers(0, 2, num_rows), pa.float32()),
        pa.array(i1),
        pa.array(i2, pa.float64()),
        pa.array(rng.integers(-(2**63), 2**63 - 1, num_rows)),
        pa.array(c2, pa.int32()),
        pa.array(tags, pa.list_(pa.int64())),
        pa.array(np.arange(num_rows)),
    ]
    return pa.table(columns, pa.schema(fields))


def make_list(i: int, rng: np.random.Generator) -> list[int | None] | None:
    if i % 13 == 0:
        return None
    values: list[int | None] = [int(x) for x in rng.integers(0, 1 << 40, i % 6)]
    if i % 17 == 0 and values:
        values[0] = None
    return values


def write_table(table: pa.Table, folder: Path) -> str:
    file = folder / "rows.parquet"
    pq.write_table(table, file, row_group_size=ROW_GROUP_ROWS, data_page_size=512)
    return str(file)


def make_input(**changes: object) -> UnitReader:
    settings: dict = {
        "batch_rows": 64,
        "labels": ("label",),
        "numerics": ("I1", "I2"),
        "ids": ("C1", "C2", "row"),
        "id_lists": ("tags",),
        **changes,
    }
    return UnitReader(**settings)


def read_batches(
    unit: UnitReader, path: str, first_row: int, num_rows: int, seed: int = 0
) -> tuple[list[Batch], Batch]:
    """Reads all batches of rows, and the empty one at the end."""
    reader = unit.open(path, first_row, num_rows, seed)
    batches: list[Batch] = []
    while True:
        batch = unit.next(reader)
        if int(batch.num_rows) == 0:
            return batches, batch
        batches.append(batch)


def column(batches: list[Batch], name: str) -> np.ndarray:
    return np.concatenate([batch.columns[name].numpy() for batch in batches])


def numerics(batches: list[Batch]) -> np.ndarray:
    return np.concatenate([batch.columns["numerics"].numpy() for batch in batches])
