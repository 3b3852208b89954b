"""Has a client go on after one of its parameter servers died and was started again.

TensorFlow's client survives a server's death. It must be told that another process serves at the
address: `update_server_def` does so within 0.1 s. Workers then reach the server once gRPC tries
again, which it does every second. The server is empty, and handles of what was on it are dead.
Workers that are lost meanwhile are left out, and join again once they serve.

Whatever is not simple ends in a ServerLostError, for the client to begin anew: two servers at once,
a server that dies again meanwhile, a call that does not end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence, Set

import tensorflow as tf

from embedps.cluster.health import wait_until_serving
from embedps.cluster.interface import LostServer
from embedps.console.tf_logging import op_error_text
from embedps.errors import ServerLostError
from embedps.kernels.tasks import device_of

_TICK_SECS = 0.02
_CALL_SECS = 3.0  # a call that needs a dead server fails within 0.1 s, but for a few that never do
_LINK_SECS = 20.0  # gRPC tries to connect again each second


class ServerReplacement:
    """Waits for a parameter server that died, and tells TensorFlow; thread-safe."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        runs: Callable[[int], bool],
        refresh: Callable[[float], None],
        serve_secs: float,
        first: int = 0,
    ) -> None:
        """Replaces none yet: `allow` says whether it does.

        Args:
          addresses: of the servers.
          runs: tells whether a server's process runs, as far as is known.
          refresh: tells TensorFlow, within so many seconds, that another process serves.
          serve_secs: the longest wait for a server to serve again.
          first: as `device_of` takes it.
        """
        self._addresses = addresses
        self._runs = runs
        self._refresh = refresh
        self._serve_secs = serve_secs
        self._first = first
        self._changed = threading.Condition()  # guards the two below
        self._allowed = False
        self._lost: LostServer | None = None

    def allow(self, allowed: bool) -> LostServer | None:
        """Says whether servers are replaced from now on; gives one that is lost, for the last time.

        What is lost is forgotten: the cluster must not be used any more.
        """
        with self._changed:
            self._allowed = allowed
            lost, self._lost = self._lost, None
        return lost

    @property
    def allowed(self) -> bool:
        """Whether servers are replaced."""
        return self._allowed

    @property
    def is_due(self) -> bool:
        """Whether a server is lost, so that no call may begin, and what fails is no worker's."""
        if not self._allowed:
            return False
        if self._lost is not None:
            return True
        return not all(map(self._runs, range(len(self._addresses))))

    def lost(self, secs: float) -> LostServer | None:
        """Waits up to so long for a server to be found dead; gives it until `await_workers`."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, secs if self._allowed else 0)
            return self._lost

    def await_server(
        self,
        lost: LostServer,
        *,
        is_idle: Callable[[], bool],
        end_calls: Callable[[], None],
        settle_secs: float,
    ) -> None:
        """Waits until a server serves again, and tells TensorFlow of it.

        Args:
          lost: the server.
          is_idle: tells whether no call waits or runs.
          end_calls: ends the workers of calls that do not end by themselves.
          settle_secs: the longest wait for calls to end.

        Raises:
          ServerLostError: it does not serve, or more was lost meanwhile.
        """
        began, is_ended = time.monotonic(), False
        while not is_idle():
            waited = time.monotonic() - began
            if waited > _CALL_SECS and not is_ended:
                is_ended = True
                end_calls()
            if waited > settle_secs:
                raise ServerLostError(f"a worker did not end its call within {settle_secs:.0f} s")
            time.sleep(_TICK_SECS)
        wait_until_serving(
            {("ps", lost.number): self._addresses[lost.number]},
            secs=self._serve_secs,
            check=lambda _: self._check(lost),
        )
        self._check(lost)
        self._refresh(_LINK_SECS)

    def await_workers(self, lost: LostServer, workers: Set[int]) -> None:
        """Waits until all workers reach a server that serves again; it is not lost any more.

        Raises:
          ServerLostError: one does not, or more was lost meanwhile.
        """
        for worker in workers:
            self._await_link(device_of(("worker", worker), self._first), lost)
        with self._changed:
            self._check(lost)
            self._lost = None

    def _check(self, lost: LostServer) -> None:
        if self._lost is not lost:
            raise ServerLostError("a server was lost once more meanwhile")

    def _await_link(self, worker: str, lost: LostServer) -> None:
        """Waits until a worker reaches the server."""

        @tf.function(autograph=False)
        def reach() -> tf.Tensor:
            with tf.device(lost.device):
                there = tf.random.uniform([])  # no constant: it would not go there
            with tf.device(worker):
                return tf.identity(there)

        deadline = time.monotonic() + _LINK_SECS
        while True:
            self._check(lost)
            try:
                with tf.device(worker):
                    reach().numpy()
                return
            except tf.errors.OpError as error:
                if time.monotonic() > deadline:
                    raise ServerLostError(
                        f"{worker} did not reach it within {_LINK_SECS:.0f} s "
                        f"({op_error_text(error.message)[:200]})"
                    ) from error
            time.sleep(_TICK_SECS)

    def take(self, index: int, why: str) -> bool:
        """Takes a server that ended; tells whether it is to be started again."""
        with self._changed:
            if not self._allowed or self._lost is not None:
                self._lost = None  # two at once: whoever waits begins anew
                return False
            self._lost = LostServer(index, device_of(("ps", index), self._first), why, time.time())
            self._changed.notify_all()
            return True

    def find(self, index: int, why: str) -> bool:
        """Takes a server that cannot be reached, if that was not known; tells if it is awaited."""
        with self._changed:
            is_known = self._lost is not None and self._lost.number == index
            return is_known or self.take(index, why)
