"""What tests of `embedps tune` share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedps import tune
from embedps.console import command_line
from embedps.data.dataset import Dataset, describe_file
from embedps.data.dataset_metadata import CategoricalFeature, NumericFeature, Split
from embedps.errors import UsageError
from embedps.run.candidates import Candidate, base_options
from embedps.training import tuning


def only_tries(monkeypatch: pytest.MonkeyPatch, *candidates: Candidate) -> None:
    """Has a search try these, for two epochs, and no neighbors."""
    monkeypatch.setattr(tune, "first_candidates", lambda *_: list(candidates))
    monkeypatch.setattr(tuning, "neighbors", lambda *_: [])
    quick = {"batch_size": 64, "epochs": 2}
    monkeypatch.setattr(tune, "base_options", lambda data: {**base_options(data), **quick})


def refused(capsys: pytest.CaptureFixture[str], *flags: object) -> str:
    assert command_line.run(tune.main, [str(flag) for flag in flags]) == UsageError.exit_code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def write_rows(directory: Path, *, label: Any, x: Any = None) -> Dataset:
    """A dataset of rows in this order; a number and a column of ids are constant."""
    rng, rows = np.random.default_rng(0), len(label)
    x = rng.normal(np.asarray(label), 1) if x is None else x
    columns: dict[str, np.ndarray[Any, Any]] = {
        "label": np.asarray(label, np.float32),
        "x": np.asarray(x, np.float32),
        "same": np.ones(rows, np.float32),
        "id": rng.integers(0, 3, rows),
        "one": np.zeros(rows, np.int64),
    }
    fields = [pa.field(n, pa.from_numpy_dtype(v.dtype), nullable=False) for n, v in columns.items()]
    path = directory / "train" / "shard-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns, schema=pa.schema(fields)), path)
    file = describe_file(directory, path)
    Dataset(
        directory=directory,
        numeric=tuple(NumericFeature(name=n) for n in ("x", "same")),
        categorical=tuple(
            CategoricalFeature(name=n, cardinality=c) for n, c in (("id", 3), ("one", 1))
        ),
        schema={field.name: str(field.type) for field in fields},
        splits={"train": Split(rows=rows, positives=int(np.sum(label)), files=(file,))},
    ).save()
    return Dataset.open(directory)
