"""Requests of exports, and what a process without embedps answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from embedps.evaluation.evaluator import EVAL_BATCH_ROWS
from embedps.evaluation.loaded_model import LoadedModel
from tests.builders import COLUMNS

CLIENT = Path(__file__).with_name("client_program.py")
SITE_PACKAGES = str(Path(tf.__file__).parents[1])

Tensors = dict[str, np.ndarray]


def bytes_on_disk(directory: Path) -> int:
    """The bytes of this process's files without a name in a directory."""
    total = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(each).startswith(f"{directory}/"):
                total += each.stat().st_size
        except OSError:
            continue  # the listing's own
    return total


def evaluated(model: LoadedModel, table: pa.Table) -> dict[str, np.ndarray]:
    """The predictions of rows in the evaluator's batches."""
    starts = range(0, table.num_rows, EVAL_BATCH_ROWS)
    parts = [model.predict(table.slice(start, EVAL_BATCH_ROWS)) for start in starts]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def tensors(table: pa.Table, columns: Sequence[str] = COLUMNS) -> Tensors:
    """A request of named tensors."""
    made = {}
    for name in columns:
        column = table[name].combine_chunks()
        if pa.types.is_list(column.type):
            made[f"{name}_lengths"] = np.array(pa.compute.list_value_length(column), np.int64)
            column = column.flatten()
        made[name] = column.to_numpy(zero_copy_only=False)
    return made


def examples(table: pa.Table, columns: Sequence[str]) -> Tensors:
    """A request of serialized tf.Examples; what is missing is left out."""
    serialized = []
    for row in table.select(columns).to_pylist():
        feature = {}
        for name, value in row.items():
            values = value if isinstance(value, list) else [value]
            if isinstance(value, float) and np.isnan(value):
                continue
            if pa.types.is_floating(_value_type(table.schema.field(name).type)):
                feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
            elif value != -1:
                feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        features = tf.train.Features(feature=feature)
        serialized.append(tf.train.Example(features=features).SerializeToString())
    return {"examples": np.array(serialized, object)}  # bytes would lose zeros at their end


def raw_request(records: list[dict[str, str]]) -> Tensors:
    """A request of the columns of `tests.pipelines.shop.RAW`."""

    def numbers(name: str) -> Any:
        return np.array(
            [float("nan") if r[name] in ("", "NA") else float(r[name]) for r in records]
        )

    def integers(name: str) -> Any:
        return np.array([int(r[name] or -1) for r in records])

    lists = {n: [r[n].split("|") if r[n] else [] for r in records] for n in ("pages", "wishes")}
    return {
        **{name: integers(name) for name in ("time", "code", "rare")},
        "price": numbers("price"),
        "the_age": numbers("the age"),
        "site": np.array([r["site"].encode() for r in records], object),
        "pages": np.array([text.encode() for each in lists["pages"] for text in each], object),
        "wishes": np.array([int(text) for each in lists["wishes"] for text in each]),
        **{f"{name}_lengths": np.array(list(map(len, each))) for name, each in lists.items()},
    }


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


def ask(exports: Mapping[Path, Mapping[str, Sequence[Tensors]]]) -> list[dict[str, Any]]:
    """Answers requests in one process without embedps.

    Args:
      exports: by path the requests by signature.

    Returns:
      By export the outputs as "LOADER/SIGNATURE/NUMBER/TENSOR".
    """
    for path, by_signature in exports.items():
        arrays = {
            f"{signature}/{number}/{name}": array
            for signature, requests in by_signature.items()
            for number, request in enumerate(requests)
            for name, array in request.items()
        }
        np.savez(f"{path}.requests.npz", **arrays)  # type: ignore[arg-type]
    command = [sys.executable, "-I", "-S", str(CLIENT), SITE_PACKAGES, *map(str, exports)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [dict(np.load(f"{path}.answers.npz")) for path in exports]
