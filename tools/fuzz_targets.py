"""The targets of the Python fuzzers: each calls the reader of a format with any bytes.

A target returns, or raises an EmbedpsError that says what is wrong. Anything else is a bug.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_dense
from embedps.checkpoint.format.ledger_state import check_ledger
from embedps.checkpoint.format.manifest_json import from_json, to_json
from embedps.checkpoint.format.rows import RowFile
from embedps.checkpoint.lease import read_leases
from embedps.data.dataset import Dataset
from embedps.errors import EmbedpsError
from embedps.run.summary import read_evaluations
from embedps.storage import file_io


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
    with _in_memory(data) as path:
        for _ in RowFile(path).batches():
            pass


def dense(data: bytes) -> None:
    """Reads a dense file."""
    with _in_memory(data) as path:
        read_dense(path)


def dataset(data: bytes) -> None:
    """Reads a `_dataset.json`."""
    with _in_folder("_dataset.json", data) as folder:
        Dataset.open(folder)


def lease(data: bytes) -> None:
    """Reads a lease."""
    with _in_folder("leases/reader.json", data) as folder:
        for each in read_leases(CheckpointDirectory(folder)):
            each.is_live(1.5)


def run(data: bytes) -> None:
    """Reads a run's config.json, which names the model's module."""
    from embedps.run.run_config import read_run

    with _in_folder("config.json", data) as folder:
        read_run(folder)


def evaluation(data: bytes) -> None:
    """Reads an evaluation.jsonl."""
    with _in_folder("evaluation.jsonl", data) as folder:
        for each in read_evaluations(folder):
            each["number"] + each["step"]


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each for each in (manifest, row_file, dense, dataset, lease, run, evaluation)
}


def call(target: Callable[[bytes], Any], data: bytes) -> None:
    """Calls a target. It may fail with an EmbedpsError."""
    with contextlib.suppress(EmbedpsError):
        target(data)


@contextlib.contextmanager
def _in_memory(data: bytes) -> Iterator[Path]:
    descriptor = os.memfd_create("fuzz")
    try:
        os.write(descriptor, data)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _in_folder(name: str, data: bytes) -> Iterator[Path]:
    """Makes a folder of this process that holds one file."""
    folder = Path(tempfile.gettempdir()) / f"embedps-fuzz-{os.getpid()}"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    try:
        yield folder
    finally:
        path.unlink(missing_ok=True)
