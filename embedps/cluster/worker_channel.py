"""Connects the workers of TF_CONFIG: the first one tells the others what to do.

Collectives carry what a step exchanges. This carries what is not in a step: which unit comes next,
and what a shard holds or writes. It also notices at once that a worker is gone, which a collective
does not: TensorFlow's would wait.
"""

from __future__ import annotations

import concurrent.futures
import json
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from tensorflow.python.eager import context

from embedps.console.shutdown import deadline
from embedps.errors import ClusterError, EmbedpsError, ServerLostError

STREAMS = ("units", "files", "scans", "tables", "notices")
"""What waits for nothing but its like: a worker has a thread for each."""

_KEY = "embedps/leader"
_TOLD = "told to end"


class Leader:
    """The first worker's end."""

    def __init__(
        self,
        size: int,
        *,
        host: str,
        wait_secs: float,
        on_lost: Callable[[ClusterError], None],
        on_notice: Callable[[], None],
    ) -> None:
        """Waits for the other workers to connect.

        Args:
          size: how many workers there are.
          host: of this worker, as the others know it.
          wait_secs: the longest wait; then the process ends.
          on_lost: called on another thread when a worker is gone, or says that it cannot go on.
          on_notice: called on another thread when a worker is told to end.
        """
        self._on_notice = on_notice
        self._on_lost = on_lost
        self._told = threading.Event()
        self._locks = {stream: threading.Lock() for stream in STREAMS}
        self._to: dict[str, dict[int, Connection]] = {stream: {} for stream in STREAMS}
        self._pool = concurrent.futures.ThreadPoolExecutor(len(STREAMS), "ask")
        key = secrets.token_bytes(32)
        with Listener((host, 0), backlog=size * len(STREAMS), authkey=key) as listener:
            context.context().set_config_key_value(
                _KEY, json.dumps([host, listener.address[1], key.hex()])
            )
            with deadline(wait_secs, "the other workers of TF_CONFIG"):
                for _ in range((size - 1) * len(STREAMS)):
                    connection = listener.accept()
                    rank, stream = connection.recv()
                    self._to[stream][rank] = connection
        for rank, connection in self._to["notices"].items():
            threading.Thread(
                target=self._hear, args=(rank, connection), name=f"worker {rank}", daemon=True
            ).start()

    def tell(self, stream: str, what: str, *args: Any) -> None:
        """Makes all other workers do something; waits for nothing."""
        with self._locks[stream]:
            for rank, connection in self._to[stream].items():
                try:
                    connection.send((what, args))
                except OSError as error:
                    raise _lost(rank) from error

    def ask(self, stream: str, what: str, *args: Any, own: Callable[[], Any]) -> list[Any]:
        """Makes all workers do something at the same time; gives their answers, by rank.

        Args:
          stream: of STREAMS.
          what: another worker does.
          args: what it gets.
          own: this worker's part.

        Raises:
          ServerLostError: a worker is gone.
          Exception: the first that a worker raised, after all have ended.
        """
        with self._locks[stream]:
            for rank, connection in self._to[stream].items():
                try:
                    connection.send((what, args))
                except OSError as error:
                    raise _lost(rank) from error
            mine = self._pool.submit(own)
            answers: dict[int, Any] = {}
            for rank, connection in self._to[stream].items():
                try:
                    answers[rank] = connection.recv()
                except (EOFError, OSError) as error:
                    raise _lost(rank) from error
            answers[0] = mine.result()
        for answer in answers.values():
            if isinstance(answer, BaseException):
                raise answer
        return [answers[rank] for rank in range(len(answers))]

    def close(self) -> None:
        """Lets the other workers end, once this process ends."""
        if not self._told.is_set():
            self._told.set()
            for connection in self._to["notices"].values():
                with suppress(OSError):
                    connection.send("end")

    def _hear(self, rank: int, connection: Connection) -> None:
        """Waits for a worker's notice, or for its end."""
        try:
            while (said := connection.recv()) == _TOLD:
                self._on_notice()
            self._on_lost(ClusterError(f"worker {rank} cannot go on: {said}"))
        except (EOFError, OSError):
            if not self._told.is_set():
                self._on_lost(_lost(rank))


class OtherWorker:
    """Another worker's end.

    Attributes:
      told_to_end: whether this worker was.
    """

    def __init__(self, rank: int, *, wait_secs: float) -> None:
        """Connects to the first worker; the process ends if that takes longer than `wait_secs`."""
        self.told_to_end = False
        with deadline(wait_secs, "worker 0 of TF_CONFIG"):
            found = context.context().get_config_key_value(_KEY, int(wait_secs * 1000))
            host, port, key = json.loads(found)
            self._from: dict[str, Connection] = {}
            for stream in STREAMS:
                connection = Client((host, port), authkey=bytes.fromhex(key))
                connection.send((rank, stream))
                self._from[stream] = connection

    def notify(self) -> None:
        """Tells the first worker that this one was told to end."""
        self.told_to_end = True
        with suppress(OSError):
            self._from["notices"].send(_TOLD)

    def fail(self, why: str) -> None:
        """Tells the first worker that this one cannot go on."""
        with suppress(OSError):
            self._from["notices"].send(why)

    def serve(
        self,
        run: Callable[..., Any],
        answer: Callable[[str, Sequence[Any]], Any],
        *,
        on_end: Callable[[bool], None],
    ) -> None:
        """Does what the first worker tells, until that one is gone.

        Args:
          run: runs a unit's function, by its name, on this thread.
          answer: does what else is asked and gives the answer, on another thread.
          on_end: called on another thread when the first worker is gone; with whether it had said
            that this is the end.
        """
        for stream in ("files", "scans", "tables"):
            threading.Thread(
                target=self._answer, args=(self._from[stream], answer), name=stream, daemon=True
            ).start()
        threading.Thread(target=self._await_end, args=(on_end,), name="end", daemon=True).start()
        with suppress(EOFError, OSError):
            while True:
                what, args = self._from["units"].recv()
                run(what, *args)

    def _await_end(self, on_end: Callable[[bool], None]) -> None:
        told = False
        with suppress(EOFError, OSError):
            while True:
                told = self._from["notices"].recv() == "end"
        on_end(told)

    def _answer(self, connection: Connection, do: Callable[[str, Sequence[Any]], Any]) -> None:
        with suppress(EOFError, OSError):
            while True:
                what, args = connection.recv()
                try:
                    answer = do(what, args)
                except EmbedpsError as error:
                    answer = error
                except Exception as error:
                    answer = ClusterError(f"a worker could not {what}: {error}")
                connection.send(answer)


def _lost(rank: int) -> ServerLostError:
    return ServerLostError(f"worker {rank} is lost")
