"""What a request may ask for, counted before its arrays are made.

TensorFlow abbreviates a constant tensor to one value, and a tensor of one row counts for all rows.
So a few bytes may stand for many.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import tensorflow as tf

from embedps.serving.inputs import lengths_name, tensor_name
from embedps.serving.server.request_error import RequestError, invalid

MAX_ROWS = 1 << 16
MAX_LIST_VALUES = 1 << 22
MAX_REQUEST_BYTES = 64 << 20
MAX_GROWTH = 256  # bytes of columns per byte of the request
FREE_BYTES = 1 << 20  # of columns, whatever the request's bytes
MAX_COLUMN_BYTES = 512 << 20  # of a request
MAX_BYTES_AT_ONCE = 1 << 30  # of all requests that are worked on
_NUMBER_BYTES = 8
_TEXT_BYTES = 64  # of a text's objects, besides what it says


class Room:
    """Counts the columns' bytes of the requests that are worked on at a time."""

    def __init__(self, num_bytes: int = MAX_BYTES_AT_ONCE) -> None:
        """Takes how many they may have in all."""
        self._lock = threading.Lock()
        self._free = num_bytes

    @contextmanager
    def place(self) -> Iterator[Place]:
        """Makes a request's place; what it takes is free again after the block."""
        place = Place(self)
        try:
            yield place
        finally:
            with self._lock:
                self._free += place.num_bytes

    def take(self, num_bytes: int) -> None:
        """Takes a part.

        Raises:
          RequestError: the other requests leave less.
        """
        with self._lock:
            if num_bytes > self._free:
                raise RequestError(
                    "RESOURCE_EXHAUSTED",
                    f"the server must have {num_bytes} bytes free for the request's columns but "
                    f"other requests leave {self._free}: ask later, or for fewer records",
                )
            self._free -= num_bytes


class Place:
    """What one request takes of a Room."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.num_bytes = 0

    def admit(self, num_bytes: int, *, sent: int) -> None:
        """Takes memory for columns.

        Args:
          num_bytes: that the columns will have.
          sent: bytes of the request.

        Raises:
          RequestError: it is too much for a request of these bytes, or beside other requests.
        """
        most = min(FREE_BYTES + MAX_GROWTH * sent, MAX_COLUMN_BYTES)
        if num_bytes > most:
            raise invalid(
                f"a request of {sent} bytes must stand for at most {most} bytes of columns but "
                f"stands for {num_bytes}: send fewer records, or those of other values apart"
            )
        self._room.take(num_bytes)
        self.num_bytes += num_bytes


class _Form(Protocol):
    @property
    def specs(self) -> Mapping[str, tf.TensorSpec]: ...

    @property
    def lists(self) -> tuple[str, ...]: ...

    @property
    def list_values(self) -> frozenset[str]: ...

    @property
    def width(self) -> int: ...


def most_values(form: _Form, name: str) -> int:
    """Gives how many values a tensor of a request may have."""
    return MAX_LIST_VALUES if name in form.list_values else MAX_ROWS


def column_bytes(form: _Form, values: Mapping[str, int], texts: Mapping[str, int]) -> int:
    """Counts the bytes of a request's columns.

    Args:
      values: by tensor its values.
      texts: by tensor of texts their bytes.

    Raises:
      RequestError: a tensor has too many values.
    """
    for name, count in values.items():
        most = most_values(form, name)
        if count > most:
            raise invalid(f"{name!r} must have at most {most} values but has {count}")
    rows = max((n for name, n in values.items() if name not in form.list_values), default=0)
    held = sum(n * (_TEXT_BYTES if name in texts else _NUMBER_BYTES) for name, n in values.items())
    for name in form.lists:
        if rows > 1 and values.get(lengths_name(name)) == 1:  # it counts for all rows
            held += rows * values.get(tensor_name(name), 0) * _NUMBER_BYTES
    return held + sum(texts.values()) + rows * form.width * _NUMBER_BYTES
