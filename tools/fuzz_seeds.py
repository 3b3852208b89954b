"""Writes the fuzzers' seeds: `python -m tools.fuzz_seeds`.

They are small valid files of each format, in tests/fuzz_seeds/<target>/. Files there whose names
begin with `found-` come from a fuzzer; this command keeps them.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedps import constants
from embedps.checkpoint.format.dense import write_dense
from embedps.checkpoint.format.manifest import FileEntry, Manifest, SaveSet
from embedps.checkpoint.format.manifest_json import to_json
from embedps.checkpoint.format.quantize import Encoding, encode
from embedps.checkpoint.lease import Lease
from embedps.data.dataset_metadata import DataFile, Split
from embedps.storage import file_io
from tools.fuzz_input_seeds import input_seeds
from tools.fuzz_inputs import SHARD, small_dataset, small_shard
from tools.fuzz_request_seeds import request_seeds

SEEDS = Path(__file__).resolve().parents[1] / "tests" / "fuzz_seeds"
_TABLES = ("C1", "C2")
_CHECKSUM = "0123456789abcdef"


def main() -> int:
    """Writes all seeds."""
    for write in (
        _row_files,
        _parquet,
        _dense,
        _manifests,
        _datasets,
        _leases,
        _runs,
        _scores,
        _requests,
    ):
        write()
    for target, name, data in (*input_seeds(), *request_seeds()):
        (_folder(target) / name).write_bytes(data)
    return 0


def _folder(target: str) -> Path:
    folder = SEEDS / target
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _requests() -> None:
    """The names are those of json_request_fuzz_test.cc."""
    row = '{"I": 1, "F": -0.5e-3, "D": NaN, "T": {"b64": "QUI="}, "L": [null, "7"]}'
    columns = (
        '{"I": [18446744073709551615], "F": [null], "D": [-Infinity], '
        '"T": ["\\ud83d\\ude00é", null], "L": [], "L_lengths": [0]}'
    )
    folder = _folder("json_request")
    rows = f'{{"signature_name": "raw", "instances": [{row}, {row}]}}'
    (folder / "rows.json").write_text(rows)
    (folder / "columns.json").write_text(f'{{"inputs": {columns}, "other": [{{}}, true, false]}}')
    (folder / "values.json").write_text('{"instances": [1, {"I": 2}], "inputs": [3, "4"]}')


def _row_files() -> None:
    def floats(width: int) -> pa.DataType:
        return pa.list_(pa.field("item", pa.float32(), nullable=False), width)

    types = {
        "table": pa.dictionary(pa.int16(), pa.string()),
        "id": pa.int64(),
        "embedding": floats(2),
        "accumulator": floats(1),
        "last_step": pa.uint32(),
        "frequency": pa.uint32(),
        "removed": pa.bool_(),
    }
    metadata = {
        constants.ROW_FILE_VERSION_KEY: constants.ROW_FILE_VERSION,
        constants.ROW_FILE_NUM_TABLES_KEY: str(len(_TABLES)),
    }
    metadata |= {
        f"{constants.ROW_FILE_TABLE_KEY_PREFIX}{i}": name for i, name in enumerate(_TABLES)
    }
    schema = pa.schema([pa.field(n, t, nullable=False) for n, t in types.items()], metadata)
    rows = 5
    values = pa.array(np.arange(2 * rows, dtype=np.float32))
    arrays = [
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1, 1], pa.int16()), list(_TABLES)),
        pa.array([3, -1, 2**63 - 1, 0, -(2**63)], pa.int64()),
        pa.FixedSizeListArray.from_arrays(values, type=types["embedding"]),
        pa.FixedSizeListArray.from_arrays(values[:rows], type=types["accumulator"]),
        pa.array(range(rows), pa.uint32()),
        pa.array(range(rows), pa.uint32()),
        pa.array([False, False, True, False, True]),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    for encoding in (
        Encoding(rows="int8"),
        Encoding(rows="int4", optimizer_slots="bfloat16"),
        Encoding(optimizer_slots="bfloat16"),
    ):
        encoded = encode(pa.table(batch), encoding)
        path = _folder("row_file") / f"{encoding.rows}_{encoding.optimizer_slots}.arrow"
        with pa.ipc.new_file(path, encoded.schema) as out:
            out.write_table(encoded)
    for name, compression, batches in (
        ("none", None, 2),
        ("lz4", "lz4", 1),
        ("zstd", "zstd", 1),
        ("empty", None, 0),
    ):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(_folder("row_file") / f"{name}.arrow", schema, options=options) as out:
            for _ in range(batches):
                out.write_batch(batch)


def _parquet() -> None:
    rows = 40
    numbers = np.arange(rows)
    ragged = [[int(i)] * (i % 3) for i in numbers]
    table = pa.table(
        {
            "label": pa.array(numbers % 2, pa.float32()),
            "float": pa.array([None if i % 5 == 0 else i / 2 for i in numbers], pa.float32()),
            "double": pa.array(numbers / 3, pa.float64()),
            "small": pa.array(numbers % 7, pa.int32()),
            "flag": pa.array(numbers % 2 == 0),
            "id": pa.array([None if i % 11 == 0 else i for i in numbers.tolist()], pa.int64()),
            "unsigned": pa.array(numbers, pa.uint32()),
            "list": pa.array([None if i % 13 == 0 else r for i, r in enumerate(ragged)]),
            "short_list": pa.array(ragged, pa.list_(pa.int32())),
            "float_list": pa.array([[x / 2 for x in r] for r in ragged], pa.list_(pa.float32())),
            "double_list": pa.array(
                [None if i % 7 == 0 else [None, *r] for i, r in enumerate(ragged)],
                pa.list_(pa.float64()),
            ),
            "one_float": pa.array([[i / 2] for i in numbers.tolist()], pa.list_(pa.float32())),
            "one_flag": pa.array([[i % 2 == 0] for i in numbers.tolist()]),
            "one_id": pa.array([[None if i % 9 == 0 else i] for i in numbers.tolist()]),
            "one_class": pa.array([[i % 3] for i in numbers.tolist()], pa.list_(pa.int32())),
        }
    )
    forms: dict[str, dict[str, Any]] = {
        "plain": {"compression": "none", "use_dictionary": False},
        "dictionary": {"compression": "snappy"},
        "zstd": {"compression": "zstd", "write_page_checksum": True},
        "pages_v2": {"compression": "zstd", "data_page_version": "2.0", "data_page_size": 64},
        "gzip": {"compression": "gzip", "use_dictionary": False},
        "delta": {
            "compression": "none",
            "use_dictionary": False,
            "column_encoding": {
                "id": "DELTA_BINARY_PACKED",
                "unsigned": "DELTA_BINARY_PACKED",
                "float": "BYTE_STREAM_SPLIT",
                "double": "BYTE_STREAM_SPLIT",
            },
        },
    }
    for name, form in forms.items():
        path = _folder("parquet") / f"{name}.parquet"
        pq.write_table(table, path, row_group_size=25, write_statistics=False, **form)


def _dense() -> None:
    arrays: dict[str, np.ndarray] = {
        "0000": np.arange(6, dtype=np.float32).reshape(2, 3),
        "0001": np.array(7, np.int64),
        "0002": np.ones(3, ml_dtypes.bfloat16),
        "0003": np.zeros([0, 2]),
    }
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for file, some in (("all", arrays), ("none", {})):
            write_dense(root / "dense.arrow", some, root=root)
            (_folder("dense") / f"{file}.arrow").write_bytes((root / "dense.arrow").read_bytes())


def _manifests() -> None:
    def entry(path: str) -> FileEntry:
        return FileEntry(path=path, bytes=100, rows=2, removed=1, xxh3_64=_CHECKSUM)

    def save(kind: Any, number: int) -> SaveSet:
        files = tuple(
            entry(f"{kind}-{number}/g/{constants.shard_file_name(i, 2)}") for i in range(2)
        )
        since = number - 2 if kind == "delta" else None
        return SaveSet(kind=kind, number=number, step=10 * number, since=since, files=files)

    ledger = {
        "dataset": "0" * 32,
        "units_per_epoch": 4,
        "prefix": 2,
        "beyond": [3],
        "doing": [2],
        "attempts": [1],
        "num_attempts": 4,
        "repeated": 1,
    }
    tables = {"name": "C1", "dim": 2, "optimizer": {"kind": "adagrad"}, "group": "g"}
    manifest = Manifest(
        number=3,
        step=30,
        wall_time=1.7e9,
        chain=(save("base", 1), save("delta", 3)),
        dense=entry("dense-3/dense.arrow"),
        ledger=ledger,
        tables=(tables,),
        num_shards=2,
        progress={"examples": 5},
    )
    for name, each in (
        ("chain", manifest),
        ("base", dataclasses.replace(manifest, chain=manifest.chain[:1], dense=None, final=True)),
    ):
        (_folder("manifest") / f"{name}.json").write_bytes(to_json(each))
    content = json.loads(to_json(manifest))
    for name, change in (
        ("found-infinity", {"wall_time": "1e999"}),
        ("found-nan", {"progress": "NaN"}),
        ("found-table-number", {"tables": "[1]"}),
        ("found-long-time", {"wall_time": "1" + "0" * 400}),
        ("found-ledger", {"ledger": '{"x": 1}'}),
        ("found-huge-number", {"step": str(2**70)}),
        ("found-surrogate", {"tables": json.dumps([{**tables, "name": "\ud800"}])}),
        ("found-nested", {"progress": "[" * 3000 + "]" * 3000}),
    ):
        text = json.dumps(content | dict.fromkeys(change, "@"))
        (_folder("manifest") / f"{name}.json").write_text(
            text.replace('"@"', next(iter(change.values())))
        )


def _datasets() -> None:
    shard = small_shard()
    file = DataFile(
        path=SHARD,
        rows=3,
        bytes=len(shard),
        xxh3_64=file_io.checksum_bytes(shard),
        row_groups=(2, 1),
    )
    split = Split(rows=3, positives=2, files=(file,))
    with tempfile.TemporaryDirectory() as name:
        dataset = dataclasses.replace(small_dataset(Path(name)), splits={"train": split})
        (_folder("dataset") / "dataset.json").write_bytes(dataset.save().read_bytes())


def _leases() -> None:
    lease = Lease(
        name="reader",
        holder="evaluator",
        pid=7,
        host="localhost",
        number=3,
        acquired_at=1.0,
        expires_at=2.0,
    )
    content = json.dumps(dataclasses.asdict(lease))
    (_folder("lease") / "lease.json").write_text(content)


def _runs() -> None:
    from embedps.models import dlrm

    content = {
        "train": {"model": "dlrm", "data": "data", "model_dir": "model"},
        "model": dataclasses.asdict(dlrm.Config()),
    }
    (_folder("run") / "config.json").write_text(json.dumps(content))


def _scores() -> None:
    line = {"number": 3, "step": 9, "auc": None, "logloss": 0.5, "examples": 4}
    text = json.dumps(line) + "\n" + json.dumps(line | {"number": 4, "auc": 0.7}) + "\n"
    (_folder("evaluation") / "evaluation.jsonl").write_text(text)


if __name__ == "__main__":
    raise SystemExit(main())
