"""A model under a name: it answers requests, and follows the run's checkpoints meanwhile."""

from __future__ import annotations

import dataclasses
import gc
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import TypeVar

import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.follow import Advance, Follower
from embedps.checkpoint.format.manifest import Manifest
from embedps.console.lines import say
from embedps.errors import CheckpointError, CorruptCheckpointError, UsageError
from embedps.serving.server.batcher import Answer, Batcher
from embedps.serving.server.batching import Batching
from embedps.serving.server.live_model import LiveModel, PreparedChange
from embedps.serving.server.request_error import RequestError
from embedps.serving.server.requests import Request
from embedps.serving.unknown_queries import UNKNOWN
from embedps.tables.tier import TierStats

T = TypeVar("T")

_POLL_SECS = 0.05
_MAX_LANES = 4  # more would wait for the interpreter
_FIRST_RETRY_SECS, _LAST_RETRY_SECS = 1.0, 60.0  # of a manifest that failed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """What is served, as of the last change.

    Attributes:
      number, step, wall_time: of the manifest.
      visible_secs: from the manifest's commit until requests saw it.
      apply_secs: for how long requests waited for the change.
      applied_rows: records of rows that the change had, removals included.
      rows: by table.
      row_bytes: in memory, of all tables.
      items, item_bytes: that are ranked, and the memory of their vectors; 0 if none are.
    """

    number: int
    step: int
    wall_time: float
    visible_secs: float
    apply_secs: float
    applied_rows: int
    rows: Mapping[str, int]
    row_bytes: int
    items: int
    item_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefusedManifest:
    """Why newer manifests than the one that is served are not.

    Attributes:
      number: of the newest manifest, which cannot be served; None if they cannot be listed.
      message: what is wrong.
    """

    number: int | None
    message: str


class ServedModel:
    """Answers requests with one manifest each."""

    def __init__(
        self,
        name: str,
        directory: CheckpointDirectory,
        make: Callable[[Manifest], LiveModel],
        *,
        number: int | None,
        ref: str | None = None,
        follows: bool,
        batching: Batching,
        on_batch: Callable[[int], None],
    ) -> None:
        """Loads a manifest, and starts to follow those after it.

        Args:
          make: loads a manifest.
          number: of the manifest to serve, which pins it; None serves the newest that is whole.
          ref: whose manifest to serve instead, newer or older.
          follows: whether to serve newer manifests as they are committed, or what the ref names.
          batching: how requests share batches.
          on_batch: gets the rows of each batch.

        Raises:
          UsageError: there is no checkpoint yet, or no such ref.
          CheckpointError: the checkpoint cannot be loaded.
        """
        self.name, self.ref = name, ref
        self.directory, self._make = directory, make
        self._stack = ExitStack()
        self._stop = threading.Event()
        self._refusal: RefusedManifest | None = None
        self._follower = Follower(directory, ref=ref, holder="server")
        with ExitStack() as stack:
            stack.enter_context(self._follower)
            if number is None:
                self._reached = self._load_newest()
                self._stack = stack.pop_all()
            else:
                self._reached = self._load(self._follower.to(number))
        self._follower.reached(self._reached)
        self._standing = self._stand(0.0, 0)
        _settle()

        def batcher(answer: Callable[[Request], Answer], lanes: int = 1) -> Batcher:
            return Batcher(
                answer,
                max_batch_rows=batching.batch_size,
                max_part_rows=batching.part_rows,
                max_waiting=batching.max_waiting,
                wait_secs=batching.batch_wait_ms / 1000,
                on_batch=on_batch,
                lanes=lanes,
            )

        lanes = min(len(os.sched_getaffinity(0)), _MAX_LANES)
        self._batcher = batcher(lambda request: self._model.score(request), lanes)
        # Of their own: a search takes longer than scores, which would wait for it.
        self._ranker: Batcher | None = None
        self._encoder: Batcher | None = None
        if self._model.items is not None:
            self._ranker = batcher(lambda request: self._model.rank(request))
            self._encoder = batcher(lambda request: self._model.encode(request))
        self._thread: threading.Thread | None = None
        if follows and number is None:
            self._thread = threading.Thread(target=self._follow, name=f"follow-{name}", daemon=True)
            self._thread.start()

    @property
    def standing(self) -> Standing:
        """What is served."""
        return self._standing

    @property
    def refusal(self) -> RefusedManifest | None:
        """Why no newer manifest is served, if something is wrong."""
        return self._refusal

    @property
    def tier_stats(self) -> TierStats:
        """Counts the rows on disk; none if all are in memory, or another model is taking over."""
        collection = self._model.collection
        if collection.has_disk:
            with suppress(tf.errors.NotFoundError):
                return collection.tier_stats()
        return TierStats({}, (), *[0] * 7)

    @property
    def model(self) -> LiveModel:
        """The model that is served now."""
        return self._model

    def ask(self, request: Request, timeout: float | None = None) -> Answer:
        """Scores a request; see `Batcher.ask`."""
        return self._batcher.ask(request, timeout)

    def encode(self, request: Request, timeout: float | None = None) -> Answer:
        """Computes the vectors of queries; see `rank`."""
        if self._encoder is None:
            raise self._ranks_nothing()
        return self._encoder.ask(request, timeout)

    def rank(self, request: Request, timeout: float | None = None) -> Answer:
        """Finds the best items of queries; see `Batcher.ask`.

        Raises:
          RequestError: as `Batcher.ask` does, the model ranks nothing, or a query is unknown and
            gets no other items.
        """
        items = self._model.items
        if self._ranker is None or items is None:
            raise self._ranks_nothing()
        most = items.format.parts(request).most
        answer = self._ranker.ask(request, timeout)
        outputs = {n: a[:, :most] if a.ndim > 1 else a for n, a in answer.outputs.items()}
        unknown = answer.outputs[UNKNOWN]
        if items.unknown_query == "error" and unknown.any():
            raise RequestError(
                "NOT_FOUND",
                f"record {int(unknown.argmax())} is of an unknown query: none of its ids in "
                f"{', '.join(items.query_ids.names)} has been trained: ask for another, or serve "
                "with --unknown-query popular",
            )
        return Answer(number=answer.number, outputs=outputs)

    def close(self) -> None:
        """Stops to follow, answers what waits, and ends."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._batcher.close()
        for batcher in self._others:
            batcher.close()
        self._stack.close()
        self._model.close()

    # ---- loading -----------------------------------------------------------------------------

    def _load_newest(self) -> Advance:
        """Loads the newest manifest; if it is damaged, the newest one that is whole."""
        try:
            advance = self._follower.next()
            if advance is None:
                raise UsageError(f"{self.directory.path} has no checkpoint yet: train first")
            return self._load(advance)
        except CorruptCheckpointError as error:
            if self.ref is not None:
                raise
            newest, *older = reversed(self.directory.numbers())
            for number in older:
                with suppress(CorruptCheckpointError):
                    advance = self._load(self._follower.to(number))
                    self._refuse(newest, error)
                    return advance
            raise

    def _load(self, advance: Advance) -> Advance:
        self._model = self._make(advance.manifest)
        return advance

    # ---- following ---------------------------------------------------------------------------

    def _follow(self) -> None:
        pause, again = 0.0, time.monotonic() + _FIRST_RETRY_SECS
        while not self._stop.wait(_POLL_SECS):
            newest = None
            try:
                self._model.refresh()
                newest = self._follower.target()
                if self._is_refused(newest) and time.monotonic() < again:
                    continue
                if newest != self._standing.number or not self._model.is_whole:
                    self._advance(newest)
                self._refusal = None
            except Exception as error:  # whatever it is, requests are answered as before
                pause = min(2 * pause, _LAST_RETRY_SECS) if self._is_refused(newest) else 0.0
                pause = max(pause, _FIRST_RETRY_SECS)
                again = time.monotonic() + pause
                self._refuse(newest, error)

    def _is_refused(self, number: int | None) -> bool:
        return self._refusal is not None and self._refusal.number == number

    def _refuses_after(self, number: int) -> bool:
        """Tells whether a newer manifest than one that can be served is refused."""
        newest = None if self._refusal is None else self._refusal.number
        return newest is not None and newest > number

    def _refuse(self, newest: int | None, error: Exception) -> None:
        said = " ".join((str(error) or type(error).__name__).split())
        refusal = RefusedManifest(number=newest, message=said)
        if refusal != self._refusal:
            say(f"{self.name}: no newer checkpoint is served: {said}")
        self._refusal = refusal

    def _advance(self, newest: int) -> None:
        """Moves to the newest manifest, or towards it; or to that of the ref.

        Raises:
          CheckpointError: it cannot be served. Then the newest is that can, or with a ref, what was
            served before.
        """
        served = self._standing.number
        if newest < served and self.ref is None:
            raise CheckpointError(
                f"the newest manifest of {self.directory.path} must not be older than manifest "
                f"{served}, which is served, but is {max(newest, 0)}: restart the server if it is "
                "another run's"
            )
        advance: Advance | None = None
        if not self._model.is_whole:
            self._follower.forget()
        try:
            advance = self._follower.next()
            if advance is not None:
                self._move(advance)
        except CheckpointError as error:
            tried = -1 if advance is None else advance.manifest.number
            said = self._follower.explain(error)  # before the lease moves
            if not self._model.is_whole:
                self._follower.forget()
            if self.ref is not None or not self._move_past(tried, newest):
                raise said from None

    def _move_past(self, tried: int, newest: int) -> bool:
        """Tries other manifests than one that failed; tells whether the newest is served then."""
        served = self._standing.number if self._model.is_whole else -1
        for number in reversed(self.directory.numbers()):
            if number > served and number != tried:
                with suppress(CheckpointError):
                    self._move(self._follower.to(number))
                    return number >= newest
        return False

    def _move(self, advance: Advance) -> None:
        applied_rows = 0
        change: PreparedChange | None = None
        if advance.reset:
            fresh = self._make(advance.manifest)

            def swap() -> tuple[LiveModel, float]:
                before, self._model = self._model, fresh
                return before, 0.0

            before, secs = self._between(swap)
            before.close()
            del before
            _settle()
        else:
            change = prepared = self._model.prepare(advance)

            def timed() -> float:
                began = time.monotonic()
                prepared.take()
                return time.monotonic() - began

            secs = self._between(timed)
            applied_rows = sum(save.rows + save.removed for save in advance.saves)
        if not self._refuses_after(advance.manifest.number):
            self._refusal = None
        self._standing = self._stand(secs, applied_rows)
        if change is not None:
            change.settle()
            stats = self._model.collection.stats()
            self._standing = dataclasses.replace(
                self._standing, rows=dict(stats.rows), row_bytes=stats.memory_bytes
            )
        self._reached = advance
        self._follower.reached(advance)

    def _between(self, change: Callable[[], T]) -> T:
        """Runs a change while no request is answered."""
        for batcher in (self._batcher, *self._others):  # scores wait last, so least
            change = partial(batcher.between, change)
        return change()

    @property
    def _others(self) -> list[Batcher]:
        """The batchers besides that of scores."""
        return [batcher for batcher in (self._encoder, self._ranker) if batcher is not None]

    def _ranks_nothing(self) -> RequestError:
        return RequestError("INVALID_ARGUMENT", f"model {self.name!r} ranks no items")

    def _stand(self, apply_secs: float, applied_rows: int) -> Standing:
        manifest = self._model.manifest
        visible_secs = max(0.0, time.time() - manifest.wall_time)  # before the tables are counted
        stats = self._model.collection.stats()
        items = self._model.items
        return Standing(
            number=manifest.number,
            step=manifest.step,
            wall_time=manifest.wall_time,
            visible_secs=visible_secs,
            apply_secs=apply_secs,
            applied_rows=applied_rows,
            rows=dict(stats.rows),
            row_bytes=stats.memory_bytes,
            items=0 if items is None else items.index.num_items,
            item_bytes=0 if items is None else items.index.num_bytes,
        )


def _settle() -> None:
    """Leaves the models out of later collections of garbage, each of which would take 0.3 s."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
