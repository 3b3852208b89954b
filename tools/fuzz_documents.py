"""A fuzz target of the small JSON documents that a run, an export or a prediction leaves."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from rich.console import Console

from embedps.checkpoint.chain import Position
from embedps.checkpoint.evicted_directory import EvictedDirectory
from embedps.checkpoint.tools.run_statistics import (
    STATISTICS_NAME,
    print_run_statistics,
    read_run_statistics,
)
from embedps.errors import EmbedpsError
from embedps.run.summary import RESTARTS_NAME, SUMMARY_NAME, Restarts, read_json
from embedps.run.tf_config import read_tf_config
from embedps.scheduling.arrivals import FOLDER, Arrivals
from embedps.serving.export_directory import DESCRIPTION, EXTRA, read_description
from embedps.storage.file_lock import FileLock
from tools.fuzz_folders import in_folder


def documents(data: bytes) -> None:
    """Reads any bytes as each of the documents; each reader must read or refuse them."""
    refusals = [error for read in _READERS for error in _refusals(read, data)]
    if len(refusals) == len(_READERS):
        raise refusals[0]


def _refusals(read: Callable[[bytes], None], data: bytes) -> Iterator[EmbedpsError]:
    try:
        read(data)
    except EmbedpsError as error:
        yield error


def _statistics(data: bytes) -> None:
    with in_folder(STATISTICS_NAME, data) as folder:
        found = read_run_statistics(folder)
    if found is not None:
        with open(os.devnull, "w") as nowhere:
            print_run_statistics(found, Console(file=nowhere))


def _restarts(data: bytes) -> None:
    with in_folder(RESTARTS_NAME, data) as folder:
        Restarts(folder).count(workers=0, evaluator=0)
    with in_folder(SUMMARY_NAME, data) as folder:
        read_json(folder / SUMMARY_NAME).get("x")


def _position(data: bytes) -> None:
    read = Position.from_json(data.decode(errors="replace"))
    if Position.from_json(read.to_json()) != read:
        raise AssertionError("a position that is read must be written and read again")


def _arrivals(data: bytes) -> None:
    with in_folder(f"{FOLDER}/000000000000.json", data) as folder:
        for each in Arrivals(folder).files:
            (folder / each.path).suffix, each.rows, sorted(each.scores)


def _export(data: bytes) -> None:
    with in_folder(f"{EXTRA}/{DESCRIPTION}", data) as folder:
        read_description(folder)


def _plan(data: bytes) -> None:
    from embedps.evaluation.file_scoring import PLAN_NAME, read_plan

    with in_folder(PLAN_NAME, data) as folder:
        read_plan(folder)


def _owner(data: bytes) -> None:
    with in_folder("evicted/_model_dir.json", data) as folder:
        EvictedDirectory(folder / "evicted").claim(Path("model"))


def _lock(data: bytes) -> None:
    with in_folder("lock", data) as folder, open(folder / "lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        lock = FileLock(folder / "lock")
        if lock.acquire():
            raise AssertionError("a lock that is held must not be given")
        lock.holder.encode()


def _tf_config(data: bytes) -> None:
    text = data.replace(b"\0", b"").decode(errors="surrogateescape")
    with mock.patch.dict(os.environ, TF_CONFIG=text):
        read_tf_config()


_READERS = (
    _statistics,
    _restarts,
    _position,
    _arrivals,
    _export,
    _plan,
    _owner,
    _lock,
    _tf_config,
)
