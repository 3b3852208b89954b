"""A run's changes as Arrow batches, in order, from any position on; for caches, for anyone.

rows = {}
for change in follow(directory, position):
    match change:
        case Reset():
            rows.clear()
        case Rows(batch=batch):
            ...  # set the rows of `batch`; remove those with `removed`
        case Reached(position=position):
            ...  # the rows are those of `position`: store it to go on from there
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from embedps.checkpoint.chain import Position, continuation, position_of, shortest_path
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest, SaveSet
from embedps.checkpoint.format.rows import RowFile
from embedps.checkpoint.lease import LeaseRenewer
from embedps.errors import CheckpointError, CorruptCheckpointError

LEASE_SECS = 120.0
_POLL_SECS = 0.1
_names = itertools.count()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reset:
    """What follows is a whole chain: rows held so far are to be forgotten.

    Attributes:
      lost: the position that could not be gone on from; none at a start without one.
    """

    lost: Position | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Records to apply in order: each sets the row of its table and id, or removes it.

    Attributes:
      group: the tables' group.
      save: the save that holds them.
      batch: the columns of a row file, `removed` among them.
    """

    group: str
    save: SaveSet
    batch: pa.RecordBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reached:
    """The rows are those of a save; of one on the way, where a new base was read, or newer.

    Attributes:
      position: to go on from.
      step: training steps done.
      manifest: that was read; its own state where `complete`.
      complete: the manifest's last save.
    """

    position: Position
    step: int
    manifest: Manifest
    complete: bool


Change = Reset | Rows | Reached


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advance:
    """A manifest to be brought up to, under a lease.

    Attributes:
      manifest: the next to be at.
      saves: to apply, in order; none where it holds the rows that one has.
      reset: `saves` is the whole chain, for empty tables.
    """

    manifest: Manifest
    saves: tuple[SaveSet, ...]
    reset: bool


class Follower:
    """A reader's place in a run, and the lease that keeps the way on from it, while it is open."""

    def __init__(
        self, directory: CheckpointDirectory, position: Position | None = None, *, holder: str
    ) -> None:
        """Starts at a position, or before everything.

        Args:
          directory: of the checkpoints.
          position: of the rows that the reader holds.
          holder: who it is, for `inspect`.
        """
        self._directory = directory
        self._holder = holder
        self._name = f"{holder}-{socket.gethostname()}-{os.getpid()}-{next(_names)}"
        self._lease: LeaseRenewer | None = None
        self._seen = -1  # the manifest that was looked at last
        self.position = position

    def __enter__(self) -> Follower:
        self._lease = LeaseRenewer(
            self._directory, self._name, expire_secs=LEASE_SECS, holder=self._holder
        )
        self._lease.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.__exit__(kind, error, traceback)

    @property
    def is_open(self) -> bool:
        return self._lease is not None

    def forget(self) -> None:
        """The reader holds no rows any more: its next step is a whole chain."""
        self.position, self._seen = None, -1

    def next(self) -> Advance | None:
        """The next manifest to be at, leased; None where there is no newer one.

        Raises:
          CorruptCheckpointError: the newest manifest cannot be read.
        """
        if self._lease is None:
            raise CheckpointError("a Follower must be open (`with follower:`) to be asked for more")
        while max(self._directory.numbers(), default=-1) > self._seen:
            step = self._choose()
            leased = self._lease.take(step.manifest.number)
            if leased is not None:
                return step
        return None

    def reached(self, step: Advance) -> None:
        """Says that the reader holds the rows of a step's manifest now."""
        self.position = position_of(step.manifest)
        self._seen = step.manifest.number

    def _choose(self) -> Advance:
        manifests = _readable(self._directory)
        newest = manifests[-1]
        if self.position is None:
            return Advance(manifest=newest, saves=newest.chain, reset=True)
        # The newest that can be reached at once; else the first of a way that leads far.
        saves = continuation(newest, self.position)
        if saves is not None:
            return Advance(manifest=newest, saves=saves, reset=False)
        ahead = shortest_path(manifests, self.position)
        saves = continuation(ahead[0], self.position) if ahead else None
        if saves is None or continuation(newest, position_of(ahead[-1])) is None:
            return Advance(manifest=newest, saves=newest.chain, reset=True)
        return Advance(manifest=ahead[0], saves=saves, reset=False)


def follow(
    directory: CheckpointDirectory | Path | str,
    position: Position | None = None,
    *,
    idle_secs: float = math.inf,
    stop: threading.Event | None = None,
) -> Iterator[Change]:
    """Yields what changes in a run's tables, until its last checkpoint has been read.

    What it reads is leased, and compared with its checksums first. A reader that is killed goes on
    from the last position it stored; records after it come again, which changes nothing. Where
    compactions and new bases have come meanwhile, it goes on by deltas as long as these are kept:
    `Reset` comes first, and after that only where the position is gone.

    Args:
      directory: of the checkpoints.
      position: of a `Reached`; from the start if none is given.
      idle_secs: ends when nothing was committed for so long.
      stop: ends it when set.

    Raises:
      CorruptCheckpointError: a file is not what was written.
    """
    if not isinstance(directory, CheckpointDirectory):
        directory = CheckpointDirectory(directory)
    stop = stop or threading.Event()
    with Follower(directory, position, holder="follower") as follower:
        last_change = time.monotonic()
        while not stop.is_set():
            step = follower.next()
            if step is None:
                if time.monotonic() - last_change > idle_secs:
                    return
                stop.wait(_POLL_SECS)
                continue
            yield from _read(directory, follower.position, step)
            follower.reached(step)
            last_change = time.monotonic()
            if step.manifest.final:
                return


def _read(
    directory: CheckpointDirectory, position: Position | None, step: Advance
) -> Iterator[Change]:
    if step.reset:
        yield Reset(lost=position)
    for save in step.saves:
        directory.check_content(step.manifest, save.files)
        for entry in save.files:
            for batch in RowFile(directory.file(entry)).batches():
                yield Rows(group=entry.group, save=save, batch=batch)
        yield Reached(
            position=Position(history=step.manifest.history, number=save.number),
            step=save.step,
            manifest=step.manifest,
            complete=save.number == step.manifest.save_number,
        )


def _readable(directory: CheckpointDirectory) -> list[Manifest]:
    """The manifests in order; the newest must be readable, older ones need not."""
    while True:
        numbers = directory.numbers()
        manifests = []
        for number in numbers:
            try:
                manifests.append(directory.read(number))
            except CheckpointError as error:
                corrupt = isinstance(error, CorruptCheckpointError)
                if corrupt and number == numbers[-1]:
                    raise
                if not corrupt and directory.manifest_path(number).exists():
                    raise
        if manifests and manifests[-1].number == numbers[-1]:
            return manifests
        if not numbers:
            raise CheckpointError(
                f"{directory.path} holds no manifest: nothing was committed there"
            )
