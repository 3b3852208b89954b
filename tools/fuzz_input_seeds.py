"""The fuzzers' seeds of what users hand in, and of what a run leaves besides its checkpoints."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import zstandard

from embedps import constants
from embedps.features.table_schema import SCHEMAS
from tools.fuzz_inputs import LINES, TABLE, small_shard

_ROW = {
    "bought": "1",
    "time": "2024-05-06T07:08:09",
    "price": "3.5",
    "age": "30",
    "site": "ab12",
    "pages": "x|y",
    "rates": "0.5 2",
    "user": "7",
}
_DOCUMENTS = {
    "statistics": {
        "step": 7,
        "observed_secs": 90.0,
        "tables": {
            "C1": {
                "rows_per_hour": 5.0,
                "bytes_per_hour": 100.0,
                "admitted": 1,
                "refused": 2,
                "evicted": {"hand": 3},
                "lookups": 4,
                "ids_per_step": 1.5,
            }
        },
        "servers": [
            {
                "rows": 9,
                "memory_bytes": 1000,
                "resident_bytes": 2000,
                "lookups_per_sec": 3.0,
                "load": 0.5,
            }
        ],
        "forecasts": [{"subject": "C1", "limit": "max_rows", "size": 9, "hours": 2.5}],
    },
    "restarts": {"worker_restarts": 1, "evaluator_restarts": 2},
    "position": {"history": "0123456789abcdef", "number": 3},
    "arrivals": [
        {
            "path": "a.parquet",
            "row_groups": [3, 1],
            "refused": "",
            "scores": {"auc": 0.5},
            "time": 1.5,
            "event_ms": 7,
        }
    ],
    "export": {"format": "embedps.export", "version": 1, "files": {}},
    "plan": {"format": "embedps.predict", "checkpoint": 3, "model_dir": "m", "files": []},
    "owner": {"model_dir": "/m"},
    "lock": {"pid": 7, "host": "h", "since": 1.5},
    "tf_config": {"cluster": {"worker": ["h:1"]}, "task": {"type": "worker", "index": 0}},
}


_NESTED = b"[" * 3000 + b"]" * 3000
"""Deeper than Python reads JSON, and than it reads TOML."""


def input_seeds() -> Iterator[tuple[str, str, bytes]]:
    """Gives the target, a name and the bytes of each."""
    for name, document in _DOCUMENTS.items():
        yield "documents", f"{name}.json", json.dumps(document).encode()
    for target in (
        "documents",
        "dataset",
        "lease",
        "run",
        "evaluation",
        "stored_transforms",
        "rest",
    ):
        yield target, "found-nested.json", b'{"a": ' + _NESTED + b"}"
    for target in ("schema", "options"):
        yield target, "found-nested.toml", b"a = " + _NESTED
    yield from (("schema", path.name, path.read_bytes()) for path in sorted(SCHEMAS.glob("*.toml")))
    yield "schema", "kinds.toml", TABLE.encode()
    yield "options", "options.toml", _OPTIONS
    yield "stored_transforms", "transforms.json", _transforms()
    yield "kept_ids", "ids.arrow", _arrow(pa.record_batch({"id": np.array([3, 5], np.int64)}))
    yield from (("lines", name, data) for name, data in _logs())
    yield from (("table_file", name, data) for name, data in _tables())
    yield "shard", "shard.parquet", small_shard()
    vectors = pa.FixedSizeListArray.from_arrays(np.arange(6, dtype=np.float32), 2)
    yield "items", "items.parquet", _parquet(pa.table({"id": [1, 2, 3], "vector": vectors}))
    yield "ledger", "ledger.json", json.dumps(_LEDGER).encode()
    yield "admission", "admission.arrow", _admission()


_OPTIONS = b"""data = "data"
model_dir = "model"
batch_size = 512
shuffle = false
embedding_dim = 8
bottom_mlp = [8, 4]
[cluster]
num_ps = 2
[checkpoint]
delta_secs = 30
"""
_LEDGER = {
    "dataset": "0" * 32,
    "units_per_epoch": 4,
    "prefix": 2,
    "beyond": [4],
    "doing": [3],
    "attempts": [1],
    "num_attempts": 4,
    "repeated": 1,
    "columns": [["label", "float"]],
    "made_of": {
        "batch_size": 2, "unit_rows": 4, "shuffle": True, "seed": 0, "rows": 9, "files": 1
    },
    "visited": {"rows": 8, "steps": 4, "of": 27},
    "end_step": 9,
    "stage": {"first_step": 3, "history": [{"visited_rows": 5, "first_step": 0}]},
}  # fmt: skip


def _transforms() -> bytes:
    node = {
        "name": "t",
        "column": [
            {"name": "bought", "as": "label", "type": "number"},
            {"name": "price", "as": "numeric", "type": "float"},
            {"name": "site", "as": "categorical", "type": "integer"},
        ],
        "feature": [
            {
                "name": "price",
                "from": "price",
                "transform": ["log1p", {"standardize": {"mean": 0.5, "std": 2.0}}],
            },
            {
                "name": "site",
                "from": "site",
                "transform": [
                    {"min_count": {"count": 2, "file": "_transforms/site.arrow"}},
                    {"hash": 100},
                ],
            },
            {"name": "both", "cross": ["site", "site"], "transform": [{"hash": 9}]},
        ],
    }
    return json.dumps({"format": "embedps.transforms", "version": 1, "table": node}).encode()


def _logs() -> Iterator[tuple[str, bytes]]:
    typed = {"bought": 1, "price": 0.5, "site": 2**63, "pages": ["x"], "rates": [[1, "2"]]}
    objects = "".join(json.dumps(each) + "\n" for each in (_ROW, typed, {"user": {"a": 1}}))
    for i, (quote, delimiter) in enumerate(LINES):
        rows = [list(_ROW), *[list(_ROW.values())] * 2]
        text = "".join(delimiter.join(quote + x + quote for x in row) + "\n" for row in rows)
        if not delimiter:
            text = objects
        ending = "csv" if delimiter else "jsonl"
        yield f"log_{i}.{ending}", bytes([i]) + text.encode()
        if quote:
            broken = text.replace("x|y", f"x{quote}{quote}\r\ny") + text.replace("30", f"3{quote}0")
            yield f"quotes_{i}.csv", bytes([i]) + broken.encode()
        if i == 0:
            yield "log.csv.gz", bytes([i]) + gzip.compress(text.encode(), mtime=0)
            yield "log.csv.zst", bytes([i]) + zstandard.compress(text.encode())
        if not delimiter:
            yield "log.jsonl.bz2", bytes([i]) + bz2.compress(text.encode())
            yield "log.jsonl.xz", bytes([i]) + lzma.compress(text.encode())


def _tables() -> Iterator[tuple[str, bytes]]:
    texts = pa.table({name: [value, value] for name, value in _ROW.items()})
    typed = pa.table(
        {
            "bought": pa.array([1, 0], pa.int8()),
            "time": pa.array([1, 2], pa.timestamp("us")),
            "price": [0.5, None],
            "age": pa.array([3, None], pa.int32()),
            "site": pa.array([1, 2**63], pa.uint64()),
            "pages": [["x"], []],
            "rates": [[0.5], [1.0, 2.0]],
            "user": [1, 2],
        }
    )
    for name, table in (("texts", texts), ("typed", typed)):
        yield f"{name}.parquet", _parquet(table)
        if name == "texts":
            out = io.BytesIO()
            pyarrow.orc.write_table(table, out)
            yield f"{name}.orc", out.getvalue()


def _parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, compression="none")
    return out.getvalue()


def _arrow(batch: pa.RecordBatch) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_file(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


def _admission() -> bytes:
    tables = pa.array(["C1", "C2"])
    columns = {
        "table": pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int16()), tables),
        "id": pa.array([1, -2, 3], pa.int64()),
        "count": pa.array([1, 2, 0], pa.uint32()),
        "last_step": pa.array([4, 5, 0], pa.uint32()),
        "removed": pa.array([False, False, True]),
    }
    metadata = {
        constants.ADMISSION_FILE_VERSION_KEY: constants.ADMISSION_FILE_VERSION,
        constants.ROW_FILE_NUM_TABLES_KEY: "2",
        f"{constants.ROW_FILE_TABLE_KEY_PREFIX}0": "C1",
        f"{constants.ROW_FILE_TABLE_KEY_PREFIX}1": "C2",
    }
    fields = [pa.field(name, each.type, nullable=False) for name, each in columns.items()]
    schema = pa.schema(fields, metadata)
    return _arrow(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))
