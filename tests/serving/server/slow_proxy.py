"""A proxy between a server and its store that can hold some of the answers, or hang up."""

from __future__ import annotations

import contextlib
import socket
import threading


class SlowProxy:
    """Passes bytes on, in both ways, while it is open.

    Attributes:
      port: where it listens.
      held: set once an answer waits.
    """

    def __init__(self, port: int) -> None:
        """Takes the port of the store on this machine."""
        self._target = ("127.0.0.1", port)
        self._open = threading.Event()
        self._open.set()
        self.held = threading.Event()
        self._text = b""
        self._refuses = False
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, text: bytes) -> None:
        """Lets no answer through that has a text, until `release`."""
        self._text = text
        self.held.clear()
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def hang_up(self) -> None:
        """Breaks off all connections, and each new one, until `come_back`."""
        self._refuses = True
        for each in list(self._sockets):
            self._end(each)

    def come_back(self) -> None:
        self._refuses = False

    def close(self) -> None:
        self._open.set()
        self._listener.close()
        self.hang_up()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refuses:
                    client.close()
                    continue
                store = socket.create_connection(self._target)
                self._sockets |= {client, store}
                for ends in ((client, store, False), (store, client, True)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_answer and not self._open.is_set() and self._text in data:
                    self.held.set()
                    self._open.wait()
                target.sendall(data)
        for each in (source, target):
            self._end(each)

    def _end(self, each: socket.socket) -> None:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
        self._sockets.discard(each)
