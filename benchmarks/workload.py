"""W1: facebookresearch/dlrm's Criteo Kaggle configuration, on batches of Zipf ids."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.click_rows import ID_COLUMNS

NUM_NUMERICS = 13
ZIPF_EXPONENT = 1.05
CARDINALITIES = tuple(column.cardinality for column in ID_COLUMNS)
"""Of Criteo Kaggle's 26 categorical features: 33.8M rows in all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches:
    """Examples with ids in [0, cardinality), the same for whoever is measured.

    Attributes:
      numerics: float32 [rows, 13].
      ids: int64 [26, rows].
      labels: float32 [rows], a quarter of them 1.
    """

    numerics: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float32]


def make_batches(rows: int, *, seed: int = 1) -> Batches:
    """Draws examples: ranks with p ~ 1 / r^1.05 by the inverse of the continuous CDF, permuted."""
    rng = np.random.default_rng(seed)
    exponent = 1.0 - ZIPF_EXPONENT
    ids = np.empty((len(CARDINALITIES), rows), np.int64)
    for feature, cardinality in enumerate(CARDINALITIES):
        u = rng.random(rows)
        ranks = np.power(1.0 - u * (1.0 - (cardinality + 1.0) ** exponent), 1.0 / exponent)
        ranks = np.clip(ranks.astype(np.int64) - 1, 0, cardinality - 1)
        multiplier = 2654435761 % cardinality or 1
        while np.gcd(multiplier, cardinality) != 1:
            multiplier += 1
        ids[feature] = (ranks * multiplier + 12345) % cardinality
    return Batches(
        numerics=rng.random((rows, NUM_NUMERICS), dtype=np.float32),
        ids=ids,
        labels=(rng.random(rows) < 0.25).astype(np.float32),
    )


@contextmanager
def parquet_file(batches: Batches, *, row_group_rows: int) -> Iterator[Path]:
    """Writes the examples as a dataset's shard is, for as long as the block runs."""
    columns: dict[str, npt.NDArray[np.generic]] = {"label": batches.labels}
    columns |= {f"I{i + 1}": batches.numerics[:, i] for i in range(NUM_NUMERICS)}
    columns |= {f"C{i + 1}": ids for i, ids in enumerate(batches.ids)}
    schema = pa.schema(
        [pa.field(n, pa.from_numpy_dtype(c.dtype), nullable=False) for n, c in columns.items()]
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batches.parquet"
        table = pa.table(columns, schema=schema)
        pq.write_table(table, path, row_group_size=row_group_rows, compression="zstd")
        yield path
