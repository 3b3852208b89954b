"""The targets of the Python fuzzers: each calls the reader of a format with any bytes.

A target returns, or raises an EmbedpsError that says what is wrong. Anything else is a bug.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.admission import AdmissionFile
from embedps.checkpoint.format.dense import read_dense
from embedps.checkpoint.format.ledger_state import check_ledger
from embedps.checkpoint.format.manifest_json import from_json, to_json
from embedps.checkpoint.format.rows import RowFile
from embedps.checkpoint.lease import read_leases
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import DataFile, Split
from embedps.errors import EmbedpsError
from embedps.run.summary import read_evaluations
from embedps.storage import file_io
from tools.fuzz_changes import Change, change_json, change_toml
from tools.fuzz_documents import documents
from tools.fuzz_folders import in_folder, in_memory
from tools.fuzz_http import http
from tools.fuzz_inputs import (
    SHARD,
    items,
    kept_ids,
    lines,
    options,
    schema,
    shard,
    small_dataset,
    small_shard,
    stored_transforms,
    table_file,
)
from tools.fuzz_requests import example, grpc, rest


def manifest(data: bytes) -> None:
    """Reads a manifest unchanged, then with the right checksum of its content."""
    for each in (data, _signed(data)):
        with contextlib.suppress(EmbedpsError):
            read = from_json(each, Path("00000003.json"))
            if from_json(to_json(read), Path("again")) != read:
                raise AssertionError("a manifest that is read must be written and read again")
            for file in read.files:
                os.path.lexists(file.path)  # raises ValueError for an impossible path
            check_ledger(read.ledger, Path("00000003.json"))


def _signed(data: bytes) -> bytes:
    try:
        content = json.loads(data)
        content.pop("xxh3_64", None)
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        content["xxh3_64"] = file_io.checksum_bytes(canonical.encode())
        return json.dumps(content).encode()
    except (ValueError, RecursionError, AttributeError, TypeError):
        return data


def row_file(data: bytes) -> None:
    """Reads a row file with the Python reader."""
    with in_memory(data) as path:
        for _ in RowFile(path).batches():
            pass


def admission(data: bytes) -> None:
    """Reads a file of the counters of ids without a row."""
    with in_memory(data) as path:
        for _ in AdmissionFile(path).batches():
            pass


def ledger(data: bytes) -> None:
    """Resumes from a ledger's state, as a manifest has it."""
    from embedps.scheduling.division import LedgerOptions
    from embedps.scheduling.ledger import Ledger

    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(state, dict):  # manifest_json checks it
        return
    check_ledger(state, Path("00000003.json"))
    options = LedgerOptions(batch_rows=2, unit_rows=4)
    resumed = Ledger(_small_split(), options, epochs=3)
    state["dataset"] = resumed.state()["dataset"]
    resumed.restore(state)
    resumed.steps_done(), resumed.rows_done(), resumed.num_done, resumed.finished
    for _ in range(3):
        unit = resumed.take()
        if unit is not None:
            resumed.begin(unit)
            resumed.done(unit)
    check_ledger(resumed.state(), Path("00000004.json"))


def _small_split() -> Dataset:
    file = DataFile(path="a", rows=9, bytes=9, xxh3_64="0" * 16, row_groups=(5, 4))
    split = Split(rows=9, positives=0, files=(file,))
    return dataclasses.replace(small_dataset(Path("data")), splits={"train": split})


def dense(data: bytes) -> None:
    """Reads a dense file."""
    with in_memory(data) as path:
        read_dense(path)


def dataset(data: bytes) -> None:
    """Reads a `_dataset.json` beside a shard."""
    with in_folder("_dataset.json", data) as folder:
        if not (folder / SHARD).exists():
            (folder / SHARD).parent.mkdir(exist_ok=True)
            (folder / SHARD).write_bytes(small_shard())
        Dataset.open(folder)


def lease(data: bytes) -> None:
    """Reads a lease."""
    with in_folder("leases/reader.json", data) as folder:
        for each in read_leases(CheckpointDirectory(folder)):
            each.is_live(1.5)


def run(data: bytes) -> None:
    """Reads a run's config.json, which names the model's module."""
    from embedps.run.run_config import read_run

    with in_folder("config.json", data) as folder:
        read_run(folder)


def evaluation(data: bytes) -> None:
    """Reads an evaluation.jsonl."""
    with in_folder("evaluation.jsonl", data) as folder:
        for each in read_evaluations(folder):
            each["number"] + each["step"]


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (
        *(manifest, row_file, admission, dense, dataset, ledger, lease, run, evaluation, documents),
        *(schema, options, stored_transforms, kept_ids, lines, table_file, shard, items),
        *(rest, grpc, example, http),
    )
}
"""The targets by name."""

_JSON = "manifest dataset ledger lease run evaluation documents stored_transforms rest"
CHANGES: dict[str, Change] = {
    **dict.fromkeys(_JSON.split(), change_json),
    **dict.fromkeys(("schema", "options"), change_toml),
}
"""How the documents of a target are changed; others by bytes only."""


def call(target: Callable[[bytes], Any], data: bytes) -> None:
    """Calls a target. It may fail with an EmbedpsError."""
    with contextlib.suppress(EmbedpsError):
        target(data)
