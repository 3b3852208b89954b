"""Requests wait in a bounded queue and are scored in batches, a few batches at a time.

If nothing waits and a lane is free, a request's own thread scores it: two switches of threads less.
Otherwise a lane's thread scores all that wait. A large request is scored part by part, one at a
time, and in between a batch of the others is. So these wait for one part, whatever a request asks
for. Whatever changes the model runs while no lane scores, and not between the parts of a request.
So a request sees the model before a change or after it, never a part of the change.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import tensorflow as tf

from embedps.serving.server.request_error import RequestError, invalid
from embedps.serving.server.requests import Request, concatenate, split
from embedps.serving.server.tensor_values import Array

T = TypeVar("T")

_MAX_VALUES_PER_ROW = 64  # of a column of lists in a part, on average
_LEAST_BESIDE = 8  # rows of a batch beside another: fewer cost less in the next batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Predictions by name, and the number of the manifest that gave them."""

    number: int
    outputs: Mapping[str, Array]


class _Pending(Generic[T]):
    """A value that another thread makes."""

    def __init__(self) -> None:
        self._done = threading.Lock()  # until there is a value; an Event takes ten times as long
        self._done.acquire()
        self._value: T | None = None
        self._error: BaseException | None = None

    def finish(self, value: T) -> None:
        self._value = value
        self._done.release()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._done.release()

    def result(self, timeout: float | None) -> T:
        secs = -1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        if not self._done.acquire(timeout=secs):
            raise _too_late()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class _Waiting(_Pending[Answer]):
    def __init__(self, request: Request, deadline: float | None) -> None:
        super().__init__()
        self.request, self.deadline = request, deadline

    @property
    def is_late(self) -> bool:
        return self.deadline is not None and self.deadline < time.monotonic()


class _Large:
    """A request that is scored in parts, and the answers of those until now."""

    def __init__(self, waiting: _Waiting, parts: Iterator[Request]) -> None:
        self._waiting, self._parts = waiting, parts
        self._answers: list[Answer] = []
        self._rows_left = waiting.request.rows

    @property
    def has_ended(self) -> bool:
        return self._rows_left == 0

    def answer_part(self, score: Callable[[Request], Answer]) -> int:
        """Scores the next part; gives its rows. An error ends the request."""
        rows = 0
        try:
            if self._waiting.is_late:
                raise _too_late()
            part = next(self._parts)
            self._answers.append(score(part))
            rows = part.rows
            self._rows_left -= rows
            if self.has_ended:
                self._waiting.finish(_joined(self._answers))
        except Exception as error:
            self._rows_left = 0
            self._waiting.fail(_as_request_error(error))
        return rows


class Batcher:
    """Scores requests in batches."""

    def __init__(
        self,
        score: Callable[[Request], Answer],
        *,
        max_batch_rows: int,
        max_part_rows: int,
        max_waiting: int,
        wait_secs: float,
        on_batch: Callable[[int], None],
        lanes: int = 1,
    ) -> None:
        """Starts a thread per lane.

        Args:
          score: scores a batch; called by as many threads at once as there are lanes.
          max_batch_rows: a batch takes no further request that would give it more rows.
          max_part_rows: a request of more is scored in parts.
          max_waiting: requests that may wait, and half as many that are scored in parts; the next
            one is refused.
          wait_secs: how long a request may wait for others to share its batch.
          on_batch: gets the rows of each batch.
          lanes: batches that are scored at once; one if requests wait for others.
        """
        self._score = score
        self._max_batch_rows, self._max_waiting = max_batch_rows, max_waiting
        self._max_part_rows = max_part_rows
        self._max_part_values = _MAX_VALUES_PER_ROW * max_part_rows
        self._wait_secs = wait_secs
        self._on_batch = on_batch
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()  # those that share batches
        self._large: deque[_Waiting] = deque()  # those that are scored in parts
        self._begun: _Large | None = None
        self._large_is_next = False  # if others wait too
        self._work: deque[tuple[Callable[[], Any], _Pending[Any]]] = deque()
        self._part_is_busy = False  # of the large request that has begun
        self._lanes = 1 if wait_secs else lanes
        self._busy = 0  # lanes; a change of the model takes all
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"scoring-{lane}", daemon=True)
            for lane in range(self._lanes)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, request: Request, timeout: float | None = None) -> Answer:
        """Scores a request; returns once its batch is scored.

        Args:
          request: the records.
          timeout: seconds until nobody waits for the answer any more.

        Raises:
          RequestError: the queue is full, the time is over, or the records cannot be scored.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = _Waiting(request, deadline)
        is_large = self._is_large(request)
        with self._changed:
            if self._closed:
                raise RequestError("UNAVAILABLE", "the server ends")
            self._check_room(is_large)
            is_free = self._has_lane(request.rows)
            alone = is_free and not (is_large or self._has_work or self._wait_secs)
            if alone:
                self._busy += 1
            else:
                (self._large if is_large else self._waiting).append(waiting)
                if is_free or self._wait_secs:
                    self._changed.notify_all()
        if alone:
            try:
                self._answer([waiting])
            finally:
                self._rest(1)
        return waiting.result(timeout)

    def between(self, work: Callable[[], T]) -> T:
        """Runs something while no lane scores, before any request that waits.

        Raises:
          RequestError: the batcher is closed.
        """
        pending: _Pending[T] = _Pending()
        with self._changed:
            if self._closed:
                raise RequestError("UNAVAILABLE", "the server ends")
            self._work.append((work, pending))
            self._changed.notify_all()
        return pending.result(None)

    def close(self) -> None:
        """Scores what waits, and ends the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def _has_work(self) -> bool:
        return bool(self._waiting or self._large or self._begun or self._work)

    def _has_lane(self, rows: int) -> bool:
        """Tells whether a lane is free for what waits and a request of so many rows."""
        if not self._busy or self._part_is_busy:
            return self._busy < self._lanes
        rows += sum(each.request.rows for each in self._waiting)
        return self._busy < self._lanes and rows >= _LEAST_BESIDE

    def _is_large(self, request: Request) -> bool:
        most_values = max((len(values) for values, _ in request.lists), default=0)
        return request.rows > self._max_part_rows or most_values > self._max_part_values

    def _check_room(self, is_large: bool) -> None:
        waiting, large = len(self._waiting) + len(self._large), len(self._large)
        if waiting >= self._max_waiting:
            raise RequestError("RESOURCE_EXHAUSTED", f"{waiting} requests wait already: ask later")
        if is_large and 2 * large >= self._max_waiting:
            raise RequestError(
                "RESOURCE_EXHAUSTED",
                f"{large} requests of more than {self._max_part_rows} records or "
                f"{self._max_part_values} values of a list wait already: ask later, or for fewer",
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                while (turn := self._next_turn()) is None:
                    if self._closed and not self._has_work:
                        return
                    self._changed.wait()
            lanes, work = turn
            try:
                work()
            finally:
                self._rest(lanes)

    def _rest(self, lanes: int) -> None:
        with self._changed:
            self._busy -= lanes
            if self._has_work or self._closed:
                self._changed.notify_all()

    def _next_turn(self) -> tuple[int, Callable[[], None]] | None:
        """Takes lanes for a change of the model, a batch, or a part of a large request."""
        if self._work and self._begun is None:
            if self._busy:
                return None
            work = self._work.popleft()
            self._busy = self._lanes
            return self._lanes, lambda: _run_into(*work)
        if self._busy == self._lanes:
            return None
        has_part = bool(self._begun or self._large) and not self._part_is_busy
        if has_part and (self._large_is_next or not self._waiting):
            self._large_is_next = False
            self._begun = large = self._begun or self._begin(self._large.popleft())
            self._part_is_busy = True
            self._busy += 1
            return 1, lambda: self._answer_part(large)
        if not (self._waiting and self._has_lane(0)):
            return None
        self._large_is_next = True
        self._busy += 1
        batch = self._next_batch()
        return 1, lambda: self._answer(batch)

    def _begin(self, waiting: _Waiting) -> _Large:
        most = {"max_rows": self._max_part_rows, "max_values": self._max_part_values}
        return _Large(waiting, split(waiting.request, **most))

    def _next_batch(self) -> list[_Waiting]:
        """Takes requests that share a batch; waits for more, if that was asked for."""
        batch = [self._waiting.popleft()]
        rows = batch[0].request.rows
        end = time.monotonic() + self._wait_secs
        while True:
            if self._waiting:
                rows += self._waiting[0].request.rows
                if rows > self._max_batch_rows:
                    break
                batch.append(self._waiting.popleft())
                continue
            left = end - time.monotonic()
            if left <= 0 or self._closed or self._has_work or rows >= self._max_batch_rows:
                break
            self._changed.wait(left)
        return batch

    def _answer_part(self, large: _Large) -> None:
        rows = large.answer_part(self._score)
        with self._changed:
            self._part_is_busy = False
            if large.has_ended:
                self._begun = None
        if rows:
            self._on_batch(rows)

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        kept = []
        for each in batch:
            if each.is_late:
                each.fail(_too_late())
            else:
                kept.append(each)
        if not kept:
            return
        try:
            answer = self._score(concatenate([each.request for each in kept]))
        except Exception as error:  # of one record; the others must not suffer by it
            if len(kept) > 1:
                for each in kept:
                    self._answer([each])
            else:
                kept[0].fail(_as_request_error(error))
            return
        first = 0
        for each in kept:
            last = first + each.request.rows
            outputs = {name: array[first:last] for name, array in answer.outputs.items()}
            each.finish(Answer(number=answer.number, outputs=outputs))
            first = last
        self._on_batch(first)


def _run_into(work: Callable[[], Any], pending: _Pending[Any]) -> None:
    try:
        pending.finish(work())
    except BaseException as error:  # goes to the thread that waits
        pending.fail(error)


def _joined(answers: Sequence[Answer]) -> Answer:
    """Makes one answer of those of a request's parts."""
    outputs = {n: np.concatenate([a.outputs[n] for a in answers]) for n in answers[0].outputs}
    return Answer(number=answers[0].number, outputs=outputs)


def _too_late() -> RequestError:
    return RequestError("DEADLINE_EXCEEDED", "the request's deadline passed")


def _as_request_error(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, tf.errors.InvalidArgumentError):
        return invalid(f"the model refuses the records: {str(error).splitlines()[0]}")
    return RequestError("INTERNAL", f"{type(error).__name__}: {error}")
