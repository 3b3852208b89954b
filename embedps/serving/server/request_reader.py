"""Reads gRPC's usual requests from their bytes by C++, without a TensorProto per column."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embedps import kernels
from embedps.serving.inputs import tensor_name
from embedps.serving.server.request_error import invalid
from embedps.serving.server.request_size import MAX_ROWS, most_values
from embedps.serving.server.requests import Format, Request

_PLACE_NUMBERS = 4  # of a ColumnPlace


class _Columns(ctypes.Structure):  # RequestColumns
    _fields_ = (
        ("names", ctypes.c_char_p),
        ("name_end", ctypes.c_void_p),
        ("num_floats", ctypes.c_int64),
        ("num_columns", ctypes.c_int64),
        ("max_rows", ctypes.c_int64),
    )


class _Parts(ctypes.Structure):  # RequestParts
    _fields_ = (
        ("objects", ctypes.c_int64),
        ("texts", ctypes.c_int64),
        ("numbers", ctypes.c_int64),
        ("name_bytes", ctypes.c_int64),
    )


# What protobuf holds of each, with room to grow.
_OBJECT_BYTES, _TEXT_BYTES, _NUMBER_BYTES = 256, 48, 24
_MAX_OBJECTS = 1 << 16  # each takes the interpreter a while
_MAX_TEXTS = 1 << 21
_MAX_NAME_BYTES = 1 << 20


def parsed_bytes(data: bytes, forms: Sequence[Format]) -> int:
    """Counts the bytes that protobuf takes to parse a PredictRequest, besides what it copies.

    While protobuf parses, no other request is worked on.

    Args:
      forms: one of which it has; any if there are none.

    Raises:
      RequestError: it is malformed, or has too many parts or too long names.
    """
    parts = _Parts()
    is_whole = kernels.library().embedps_count_parts
    is_whole.restype = ctypes.c_bool
    if not is_whole(data, ctypes.c_int64(len(data)), ctypes.byref(parts)):
        raise invalid(f"the {len(data)} bytes must be a PredictRequest")
    numbers, texts = _most_values(forms) if forms else (parts.numbers, _MAX_TEXTS)
    for count, most, what in (
        (parts.objects, _MAX_OBJECTS, "inputs, dimensions and other parts"),
        (parts.texts, min(texts, _MAX_TEXTS), "texts in string_val"),
        (parts.numbers, numbers, "numbers outside of tensor_content"),
        (parts.name_bytes, _MAX_NAME_BYTES, "bytes of names"),
    ):
        if count > most:
            raise invalid(f"a PredictRequest must have at most {most} {what} but has {count}")
    made = parts.objects * _OBJECT_BYTES + parts.texts * _TEXT_BYTES
    return int(made + parts.numbers * _NUMBER_BYTES)


def _most_values(forms: Sequence[Format]) -> tuple[int, int]:
    """Gives how many numbers and texts a request in one of some formats may have, or more."""
    numbers = texts = MAX_ROWS  # as few of the wrong kind are refused by name
    for form in forms:
        most = {name: most_values(form, name) for name in form.specs}
        of_texts = sum(n for name, n in most.items() if form.specs[name].dtype == tf.string)
        texts = max(texts, of_texts)
        numbers = max(numbers, sum(most.values()) - of_texts)
    return numbers, texts


@dataclasses.dataclass(frozen=True, kw_only=True)
class UsualRequest:
    """A request whose columns are found.

    Attributes:
      num_bytes: that its columns will have.
      read: copies them.
    """

    num_bytes: int
    read: Callable[[], Request]


class RequestReader:
    """Reads PredictRequests of some columns: see kernels/requests/predict_request.h."""

    def __init__(self, floats: list[str], integers: list[str]) -> None:
        """Takes the columns.

        Args:
          floats: the columns of float32, in the order of a Request's matrix.
          integers: those of int64.
        """
        library = kernels.library()
        self._find, self._copy = library.embedps_find_columns, library.embedps_copy_columns
        self._find.restype = ctypes.c_int64
        names = [tensor_name(name).encode() for name in (*floats, *integers)]
        self._ends = np.cumsum([len(name) for name in names], dtype=np.int64)
        self._columns = _Columns(
            b"".join(names), self._ends.ctypes.data, len(floats), len(names), MAX_ROWS
        )
        self._num_floats, self._num_columns = len(floats), len(names)

    def find(self, data: bytes) -> UsualRequest | None:
        """Finds a request's columns.

        Returns:
          None if it is not as clients send it as a rule, or is malformed.
        """
        size = ctypes.c_int64(len(data))
        columns = ctypes.byref(self._columns)
        places = np.empty([self._num_columns, _PLACE_NUMBERS], np.int64)
        rows = int(self._find(data, size, columns, _address(places)))
        if rows < 0:
            return None
        width = 4 * self._num_floats + 8 * (self._num_columns - self._num_floats)
        return UsualRequest(num_bytes=rows * width, read=lambda: self._read(data, places, rows))

    def _read(self, data: bytes, places: Any, rows: int) -> Request:
        floats = np.empty([self._num_floats, rows], np.float32)
        integers = np.empty([self._num_columns - self._num_floats, rows], np.int64)
        self._copy(
            data,
            ctypes.byref(self._columns),
            _address(places),
            ctypes.c_int64(rows),
            _address(floats),
            _address(integers),
        )
        return Request(rows=rows, floats=floats, integers=integers, lists=())


def _address(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
