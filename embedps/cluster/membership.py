"""The workers that TensorFlow's client knows: they come and go while functions run.

The client's definition of the cluster is updated when a worker comes. That takes some 0.1 s, and
functions that run on other workers go on. TensorFlow's ClusterCoordinator keeps one definition for
ever instead, and waits until all its workers are there: one that does not return keeps all others
out. Places that are spare in a fixed definition would have to answer too, before anyone trains.

A worker that is gone stays in the definition until the next update, which leaves it out or, if it
serves again by then, connects to its new process.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Set

import tensorflow as tf

from embedps.cluster.connection import tell
from embedps.cluster.health import HealthMonitor, serves, use_own_executor
from embedps.errors import ClusterError, ServerLostError
from embedps.kernels.tasks import check_task

_TICK_SECS = 0.1
_CLOSE_SECS = 5.0  # TensorFlow's wait for a task that hangs has no end


class Membership:
    """Keeps TensorFlow's definition of the cluster; thread-safe."""

    def __init__(
        self,
        health: HealthMonitor,
        places: Mapping[int, str],
        *,
        known: Iterable[int],
        first: int = 0,
        on_join: Callable[[int, int, bool], None],
    ) -> None:
        """Starts to look for workers that come.

        Args:
          health: tells which tasks serve.
          places: the address of each worker, by index, that may be there.
          known: those in TensorFlow's definition now; each is a member.
          first: as `device_of` takes it.
          on_join: called, on another thread, with a worker that came, the number of its membership,
            and whether it came for the first time.
        """
        self._health = health
        self._on_join = on_join
        self._first = first
        self._updating = threading.Lock()  # held while TensorFlow is told
        self._changed = threading.Condition()  # guards those below
        self._places = dict(places)
        self._numbers = dict.fromkeys(known, 0)  # of each member's membership
        self._seen = set(self._numbers)  # all that ever were members
        self._next = itertools.count(1)
        self._closed = False
        threading.Thread(target=self._keep_up, name="members", daemon=True).start()

    def number(self, worker: int) -> int | None:
        """Gives the number of a worker's membership, another one each time; None if it has none."""
        with self._changed:
            return None if self._closed else self._numbers.get(worker)

    def members(self) -> Set[int]:
        """Returns the workers that are there."""
        with self._changed:
            return set(self._numbers)

    def gone(self) -> Set[int]:
        """Returns the workers that were there, are not, and may come back."""
        with self._changed:
            return (self._seen & self._places.keys()) - self._numbers.keys()

    def lost(self, worker: int, number: int | None = None) -> None:
        """Takes that a worker is gone; without effect if it is a member anew since that number."""
        with self._changed:
            if worker in self._numbers and number in (None, self._numbers[worker]):
                del self._numbers[worker]
                self._changed.notify_all()

    def place(self, worker: int, address: str | None) -> None:
        """Takes where a worker may be from now on; None if it does not come back."""
        with self._changed:
            self._numbers.pop(worker, None)
            if address is None:
                self._places.pop(worker, None)
            else:
                self._places[worker] = address
            self._seen.discard(worker)
            self._changed.notify_all()

    def refresh(self, secs: float) -> None:
        """Tells TensorFlow that another process serves at a parameter server's address.

        Workers that do not serve are members no more.

        Args:
          secs: the longest wait: TensorFlow's for a server that went meanwhile has no end.

        Raises:
          OpError: a server is not there.
          ServerLostError: the time is over.
        """

        def update() -> None:
            with self._updating:
                with self._changed:
                    there = {w: (n, self._places[w]) for w, n in self._numbers.items()}
                for worker, (number, address) in there.items():
                    if not serves(address):
                        self.lost(worker, number)
                with self._changed:
                    places = {worker: self._places[worker] for worker in self._numbers}
                tell(self._first, worker=places)

        updated: concurrent.futures.Future[None] = concurrent.futures.Future()
        threading.Thread(
            target=lambda: _settle(updated, update), name="refresh", daemon=True
        ).start()
        try:
            updated.result(secs)
        except TimeoutError:
            raise ServerLostError(f"TensorFlow did not take it within {secs:.0f} s") from None

    def close(self) -> None:
        """Ends all waits; TensorFlow is told nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._updating.acquire(timeout=_CLOSE_SECS):
            self._updating.release()

    def _keep_up(self) -> None:
        use_own_executor()
        while not self._closed:
            self._update()
            with self._changed:
                self._changed.wait(_TICK_SECS)

    def _update(self) -> None:
        """Takes workers in that came, if there are any."""
        serving = {index for job, index in self._health.serving() if job == "worker"}
        silent = {index for job, index in self._health.unresponsive() if job == "worker"}
        unreachable = {index for job, index in self._health.unreachable() if job == "worker"}
        with self._updating:
            with self._changed:
                for worker in unreachable & self._numbers.keys():
                    del self._numbers[worker]
                joining = {w for w in serving & self._places.keys() if w not in self._numbers}
                places = {w: self._places[w] for w in {*self._numbers, *joining}}
                if not joining or silent & self._numbers.keys():  # TensorFlow would wait for it
                    return
                if self._closed:
                    return
            try:
                tell(self._first, worker=places)
                for worker in joining:
                    check_task(("worker", worker), self._first)
            except ClusterError as error:
                self._health.refuse(error)
                return
            except tf.errors.OpError:
                return  # one of them went meanwhile
        with self._changed:
            for worker in joining & self._places.keys():
                number = self._numbers[worker] = next(self._next)
                is_new = worker not in self._seen
                self._seen.add(worker)
                self._on_join(worker, number, is_new)
            self._changed.notify_all()


def _settle(future: concurrent.futures.Future[None], function: Callable[[], None]) -> None:
    """Runs a function and gives its end to a future."""
    use_own_executor()
    try:
        function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)
