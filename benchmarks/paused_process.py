"""A process that works when it is told, and else is stopped, so that others have the cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

from embedps.errors import EmbedpsError


class PausedProcess:
    """Runs a function of a connection: it sends once it is ready, then answers what is asked."""

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        """Starts the process.

        Args:
          function: of a module; gets a Connection and the arguments.
          arguments: that can be pickled.
        """
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=function, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_ready(self) -> None:
        """Waits for what it sends first."""
        self._connection.recv()
        self._signal(signal.SIGSTOP)

    def ask(self, message: Any) -> Any:
        """Has it do something and gives the answer."""
        self._signal(signal.SIGCONT)
        self._connection.send(message)
        answer = self._connection.recv()
        self._signal(signal.SIGSTOP)
        return answer

    def end(self) -> Any:
        """Asks None, after which it ends; gives the answer."""
        self._signal(signal.SIGCONT)
        self._connection.send(None)
        answer = self._connection.recv()
        self._process.join()
        return answer

    def kill(self) -> None:
        """Ends the process if it still runs; one that is stopped ignores a termination."""
        self._process.kill()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.pid is None or not self._process.is_alive():
            raise EmbedpsError(f"a process of the benchmark ended by {self._process.exitcode}")
        os.kill(self._process.pid, number)
