"""The workloads: the DLRMs W1 and W2, and examples as files that every system can read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from embedps.data.dataset import FILE_NAME, Dataset
from embedps.errors import UsageError
from embedps.pipelines.synthetic.click_rows import ID_COLUMNS

NUM_NUMERICS = 13
ZIPF_EXPONENT = 1.05
ROW_GROUP_ROWS = 32768
_KAGGLE = tuple(column.cardinality for column in ID_COLUMNS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """A DLRM to train.

    Attributes:
      name: its name in results.
      cardinalities: the cardinality of each categorical feature.
      dim: floats per row.
      bottom_mlp: widths of the layers over the numeric features; the last is `dim`.
      top_mlp: widths of the layers over the interactions; the last is 1.
      num_numerics: the number of numeric features.
    """

    name: str
    cardinalities: tuple[int, ...]
    dim: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    num_numerics: int = NUM_NUMERICS


# W1 is facebookresearch/dlrm's Criteo Kaggle configuration with all 33.8M rows; W2 has wider rows.
W1 = Workload(
    name="w1",
    cardinalities=_KAGGLE,
    dim=16,
    bottom_mlp=(512, 256, 64, 16),
    top_mlp=(512, 256, 1),
)
W2 = Workload(
    name="w2",
    cardinalities=tuple(min(c, 1_000_000) for c in _KAGGLE),
    dim=64,
    bottom_mlp=(512, 256, 64),
    top_mlp=(512, 512, 256, 1),
)
WORKLOADS = {w.name: w for w in (W1, W2)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches:
    """Examples, the same for every system.

    Attributes:
      numerics: float32 [rows, num_numerics].
      ids: int64 [features, rows].
      labels: float32 [rows].
    """

    numerics: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float32]


def make_batches(
    workload: Workload, rows: int, *, seed: int = 1, zipf_exponent: float = ZIPF_EXPONENT
) -> Batches:
    """Draws examples: permuted ranks r, p ~ 1 / r^exponent, by the inverse of the continuous CDF.

    Args:
      zipf_exponent: other than 1.
    """
    rng = np.random.default_rng(seed)
    exponent = 1.0 - zipf_exponent
    ids = np.empty((len(workload.cardinalities), rows), np.int64)
    for feature, cardinality in enumerate(workload.cardinalities):
        u = rng.random(rows)
        ranks = np.power(1.0 - u * (1.0 - (cardinality + 1.0) ** exponent), 1.0 / exponent)
        ranks = np.clip(ranks.astype(np.int64) - 1, 0, cardinality - 1)
        multiplier = 2654435761 % cardinality or 1
        while np.gcd(multiplier, cardinality) != 1:
            multiplier += 1
        ids[feature] = (ranks * multiplier + 12345) % cardinality
    return Batches(
        numerics=rng.random((rows, workload.num_numerics), dtype=np.float32),
        ids=ids,
        labels=(rng.random(rows) < 0.25).astype(np.float32),
    )


def read_batches(data: Path, workload: Workload, *, max_rows: int) -> tuple[Workload, Batches]:
    """Reads a dataset's training split; adapts the workload to its features.

    Args:
      data: a dataset of `embedps.pipelines.criteo`, or a Criteo TSV file, which it converts.
      workload: the workload whose network to use.
      max_rows: the most examples to read.

    Returns:
      the workload with the dataset's columns, and its examples. Ids are renumbered from 0 in the
      order of their values, because peers' tables have a fixed size and no rows for 64-bit ids.

    Raises:
      DatasetError, UsageError: there is no dataset, or the file is not a click log.
    """
    if data.is_file():
        from embedps.pipelines.criteo import main as criteo

        with tempfile.TemporaryDirectory() as folder:
            where = Path(folder) / "dataset"
            criteo(["--input", str(data), "--output", str(where), "--num-shards", "1"])
            return read_batches(where, workload, max_rows=max_rows)
    if not (data / FILE_NAME).is_file():
        raise UsageError(f"--data {data} must be a click log or a directory with {FILE_NAME}")
    dataset = Dataset.open(data)
    files = [dataset.directory / file.path for file in dataset.splits["train"].files]
    table = pa.concat_tables([pq.read_table(file) for file in files]).slice(0, max_rows)
    numerics = [np.nan_to_num(table[f.name].to_numpy()) for f in dataset.numeric]
    numbered = [
        np.unique(table[f.name].to_numpy(), return_inverse=True) for f in dataset.categorical
    ]
    batches = Batches(
        numerics=np.stack(numerics, axis=1).astype(np.float32),
        ids=np.stack([inverse.astype(np.int64) for _, inverse in numbered]),
        labels=table[dataset.label].to_numpy().astype(np.float32),
    )
    of_data = dataclasses.replace(
        workload,
        name=f"{workload.name} on {data.name}",
        cardinalities=tuple(len(distinct) for distinct, _ in numbered),
        num_numerics=len(numerics),
    )
    return of_data, batches


def repeat(batches: Batches, rows: int) -> Batches:
    """Returns `rows` examples, repeated from the beginning if there are fewer."""
    at = np.arange(rows) % len(batches.labels)
    return Batches(numerics=batches.numerics[at], ids=batches.ids[:, at], labels=batches.labels[at])


@contextlib.contextmanager
def files(workload: Workload, batches: Batches) -> Iterator[Path]:
    """Yields a folder of the examples; removes it at the end.

    It has numerics.npy, ids.npy and labels.npy as in `Batches`; batches.parquet, written like a
    shard of a dataset; and workload.json with the workload's fields.
    """
    columns: dict[str, npt.NDArray[np.generic]] = {"label": batches.labels}
    columns |= {f"I{i + 1}": batches.numerics[:, i] for i in range(workload.num_numerics)}
    columns |= {f"C{i + 1}": ids for i, ids in enumerate(batches.ids)}
    schema = pa.schema(
        [pa.field(n, pa.from_numpy_dtype(c.dtype), nullable=False) for n, c in columns.items()]
    )
    with tempfile.TemporaryDirectory(prefix="embedps-benchmark-") as name:
        folder = Path(name)
        for field in dataclasses.fields(batches):
            np.save(folder / f"{field.name}.npy", getattr(batches, field.name))
        table = pa.table(columns, schema=schema)
        path = folder / "batches.parquet"
        pq.write_table(table, path, row_group_size=ROW_GROUP_ROWS, compression="zstd")
        (folder / "workload.json").write_text(json.dumps(dataclasses.asdict(workload)))
        yield folder
