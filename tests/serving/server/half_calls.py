"""A client of HTTP/2 that sends the headers of calls, and no message or a part of one."""

from __future__ import annotations

import socket
import struct

_DATA, _HEADERS, _RESET, _SETTINGS = 0, 1, 3, 4  # kinds of frames
_END_STREAM, _END_HEADERS = 1, 4


class HalfCalls:
    """One connection, and calls on it that do not end."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        """Connects from an address of this machine."""
        self._socket = socket.create_connection(
            ("127.0.0.1", port), timeout=60, source_address=(source, 0)
        )
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
        self._stream = -1
        self._received = b""
        self._ended: set[int] = set()  # gRPC may end a call twice: by its trailers, and by a reset

    def send(self, path: str, part: bytes | None = None, *, ends: bool = False) -> int:
        """Begins a call, and gives its number.

        Args:
          path: `/service/method`.
          part: of a message of 64 KiB; None sends no byte of it.
          ends: the client says that nothing more will come.
        """
        self._stream += 2
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        flags = _END_HEADERS | (_END_STREAM if ends else 0)
        head = b"".join(_field(name, value) for name, value in fields.items())
        frames = _frame(_HEADERS, flags, self._stream, head)
        if part is not None:
            data = struct.pack(">BI", 0, 1 << 16) + part
            frames += _frame(_DATA, 0, self._stream, data)
        self._socket.sendall(frames)
        return self._stream

    def wait_for_end(self, count: int = 1) -> list[tuple[int, bytes]]:
        """Gives the numbers of the next calls that the server ends, and what it says of each."""
        found: dict[int, bytes] = {}
        said: dict[int, bytes] = {}
        while len(found) < count:
            kind, flags, stream, payload = self._next_frame()
            if kind == _HEADERS:
                said[stream] = payload
            is_end = kind == _RESET or (kind == _HEADERS and flags & _END_STREAM)
            if stream and is_end and stream not in self._ended:
                self._ended.add(stream)
                found[stream] = said.get(stream, b"")
        return list(found.items())

    def close(self) -> None:
        self._socket.close()

    def _next_frame(self) -> tuple[int, int, int, bytes]:
        high, low, kind, flags, stream = struct.unpack(">BHBBI", self._take(9))
        return kind, flags, stream, self._take(high << 16 | low)

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            data = self._socket.recv(1 << 16)
            assert data, "the server closed the connection"
            self._received += data
        taken, self._received = self._received[:size], self._received[size:]
        return taken


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    length = len(payload)
    return struct.pack(">BHBBI", length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def _field(name: str, value: str) -> bytes:
    """Writes a header that no table keeps."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
