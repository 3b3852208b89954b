"""Follows a run's checkpoints: the changes as Arrow batches, in order, from any position on.

rows = {}
for change in follow(directory, position):
    match change:
        case Reset():
            rows.clear()
        case Rows(batch=batch):
            ...  # set the rows of `batch`; remove those with `removed`
        case Reached(position=position):
            ...  # `rows` is complete as of `position`: store it, to continue from there
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embedps.checkpoint.chain import Position, continuation, position_of, shortest_path
from embedps.checkpoint.changes import Change, Reached, Reset, Rows
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.follow_served import SCHEMES, follow_served
from embedps.checkpoint.format.manifest import Manifest, SaveSet
from embedps.checkpoint.format.rows import RowFile
from embedps.checkpoint.lease import LeaseRenewer
from embedps.checkpoint.refs import number_of
from embedps.errors import CheckpointError, CorruptCheckpointError, UsageError

_POLL_SECS = 0.1
_names = itertools.count()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advance:
    """One move of a reader to a leased manifest.

    Attributes:
      manifest: the manifest to move to.
      saves: the saves to apply, in order; empty if the reader's rows are the manifest's already.
      reset: whether `saves` is the whole chain, for empty tables.
    """

    manifest: Manifest
    saves: tuple[SaveSet, ...]
    reset: bool


class Follower:
    """Keeps a reader's position in a run and, while open, a lease on the manifests ahead of it."""

    def __init__(
        self,
        directory: CheckpointDirectory,
        position: Position | None = None,
        *,
        ref: str | None = None,
        holder: str,
    ) -> None:
        """Starts at a position, or without rows.

        Args:
          position: of the rows that the reader holds.
          ref: whose manifest to move to, also an older one; None moves to the newest.
          holder: the reader's name in `inspect`.
        """
        self._directory, self._ref = directory, ref
        self._holder = holder
        self._lease: LeaseRenewer | None = None
        self._seen = -1  # number of the last manifest that the reader reached
        self.position = position

    def __enter__(self) -> Follower:
        self._lease = LeaseRenewer(self._directory, holder=self._holder)
        self._lease.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.__exit__(*error)

    @property
    def is_open(self) -> bool:
        """Tells whether the lease is held."""
        return self._lease is not None

    def forget(self) -> None:
        """Drops the position: the reader holds no rows any more, and must load a whole chain."""
        self.position, self._seen = None, -1

    def target(self) -> int:
        """Returns the number of the ref's manifest, or of the newest; -1 if there is none.

        Raises:
          UsageError: the ref was removed.
          CheckpointError: the ref cannot be read.
        """
        if self._ref is not None:
            return number_of(self._directory, self._ref)
        return max(self._directory.numbers(), default=-1)

    def next(self) -> Advance | None:
        """Leases the next manifest to move to; returns None if the reader is at the target.

        Raises:
          UsageError: the ref was removed.
          CorruptCheckpointError: the target cannot be read.
        """
        if self._lease is None:
            raise CheckpointError("a Follower must be open (`with follower:`) to call `next`")
        while self._ref is not None and (number := self.target()) != self._seen:
            try:
                return self.to(number)
            except CheckpointError:
                if self.target() == number:  # else it moved, and what it named was removed
                    raise
        while self._ref is None and self.target() > self._seen:
            advance = self._choose()
            if self._lease.hold(advance.manifest.number):
                return advance
        return None

    def to(self, number: int) -> Advance:
        """Leases one manifest to move to.

        Raises:
          CheckpointError: there is no such manifest.
          CorruptCheckpointError: it cannot be read.
        """
        if self._lease is None:
            raise CheckpointError("a Follower must be open (`with follower:`) to call `to`")
        manifest = self._lease.take(number) or self._directory.read(number)  # which says what is
        saves = continuation(manifest, self.position)
        return Advance(
            manifest=manifest,
            saves=manifest.chain if saves is None else saves,
            reset=saves is None,
        )

    def explain(self, error: CheckpointError) -> CheckpointError:
        """Says that the manifest under the lease was removed, if it was; else returns the error."""
        return error if self._lease is None else self._lease.explain(error) or error

    def reached(self, advance: Advance) -> None:
        """Records that the reader now holds the rows of an advance's manifest."""
        self.position = position_of(advance.manifest)
        self._seen = advance.manifest.number

    def _choose(self) -> Advance:
        newest = self._directory.latest()
        if newest is None:
            raise self._directory.holds_none()
        # The newest manifest if its saves continue from here; else the first of a path to it.
        # A path needs all manifests, of which an hour has thousands.
        saves = continuation(newest, self.position)
        if saves is not None:
            return Advance(manifest=newest, saves=saves, reset=False)
        if self.position is None:
            return Advance(manifest=newest, saves=newest.chain, reset=True)
        manifests = _readable(self._directory)
        newest = manifests[-1]
        ahead = shortest_path(manifests, self.position)
        saves = continuation(ahead[0], self.position) if ahead else None
        if saves is None or continuation(newest, position_of(ahead[-1])) is None:
            return Advance(manifest=newest, saves=newest.chain, reset=True)
        return Advance(manifest=ahead[0], saves=saves, reset=False)


def follow(
    directory: CheckpointDirectory | Path | str,
    position: Position | None = None,
    *,
    ref: str | None = None,
    idle_secs: float = math.inf,
    stop: threading.Event | None = None,
    token: str | None = None,
) -> Iterator[Change]:
    """Yields the changes of a run's tables, until the run's last checkpoint is read.

    The manifest is leased, and each file is compared with its checksum before it is read. A reader
    that was killed continues from the last position that it stored. It gets the records after that
    position again; applying them twice changes nothing. After compactions and new bases, the reader
    still continues by deltas while these are kept. `Reset` comes first if no position is given.
    Later it comes only if no kept deltas continue from the position.

    The changes also come from a server, without any files: "grpc://HOST:PORT/MODEL" is a model of
    `embedps serve`. A lost server is asked again, from the last position, until it answers.

    Args:
      directory: of the run, or the server's address; "grpcs://" is TLS, with the roots of the file
        in GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.
      position: from a `Reached`; the start of the chain if not given.
      ref: follow what this ref names, newer or older, instead of the newest manifest; then no
        checkpoint is the last.
      idle_secs: return after so many seconds without a commit.
      stop: return when this is set.
      token: the server's, if it has one.

    Raises:
      UsageError: there is no such ref, or it was removed; or the server refuses.
      CheckpointError: the server cannot be reached at first, or for as long as `idle_secs`.
      CorruptCheckpointError: a file is not what was written.
    """
    stop = stop or threading.Event()
    if isinstance(directory, str) and directory.startswith(SCHEMES):
        yield from follow_served(directory, position, ref, idle_secs, stop, token)
        return
    if token is not None:
        raise UsageError(f"token is of a server, grpc://HOST:PORT/MODEL, but got {directory}")
    if not isinstance(directory, CheckpointDirectory):
        directory = CheckpointDirectory(directory)
    moves = advances(directory, position, ref=ref, idle_secs=idle_secs, stop=stop)
    for advance, changes in filter(None, moves):
        yield from changes
        if advance.manifest.final and ref is None:
            return


def advances(
    directory: CheckpointDirectory,
    position: Position | None,
    *,
    ref: str | None,
    idle_secs: float,
    stop: threading.Event,
) -> Iterator[tuple[Advance, Iterator[Change]] | None]:
    """Yields each move to a manifest with its changes, which must be read; see `follow`.

    Yields None when it begins to wait for the next one.
    """
    with Follower(directory, position, ref=ref, holder="follower") as follower:
        last_change, waits = time.monotonic(), False
        while not stop.is_set():
            advance = follower.next()
            if advance is None:
                if not waits:
                    yield None
                if time.monotonic() - last_change > idle_secs:
                    return
                waits = True
                stop.wait(_POLL_SECS)
                continue
            yield advance, _read(directory, follower.position, advance)
            follower.reached(advance)
            last_change, waits = time.monotonic(), False


def _read(
    directory: CheckpointDirectory, position: Position | None, advance: Advance
) -> Iterator[Change]:
    if advance.reset:
        yield Reset(lost=position)
    for save in advance.saves:
        directory.check_content(advance.manifest, save.files)
        for entry in save.files:
            for batch in RowFile(directory.file(entry)).batches():
                yield Rows(group=entry.group, save=save, batch=batch)
        yield Reached(
            position=Position(history=advance.manifest.history, number=save.number),
            step=save.step,
            manifest=advance.manifest,
            complete=save.number == advance.manifest.save_number,
        )


def _readable(directory: CheckpointDirectory) -> list[Manifest]:
    """Reads the manifests in order; the newest must be readable, older ones need not be."""
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
            raise directory.holds_none()
