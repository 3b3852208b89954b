"""Reads gRPC's usual requests from their bytes by C++, without a TensorProto per column."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from embedps import kernels
from embedps.serving.inputs import tensor_name
from embedps.serving.server.requests import MAX_ROWS, Request

_PLACE_NUMBERS = 4  # of a ColumnPlace


class _Columns(ctypes.Structure):  # RequestColumns
    _fields_ = (
        ("names", ctypes.c_char_p),
        ("name_end", ctypes.c_void_p),
        ("num_floats", ctypes.c_int64),
        ("num_columns", ctypes.c_int64),
        ("max_rows", ctypes.c_int64),
    )


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

    def read(self, data: bytes) -> Request | None:
        """Reads a request; None if it is not as clients send it as a rule, or is malformed."""
        size = ctypes.c_int64(len(data))
        columns = ctypes.byref(self._columns)
        places = np.empty([self._num_columns, _PLACE_NUMBERS], np.int64)
        rows = self._find(data, size, columns, _address(places))
        if rows < 0:
            return None
        floats = np.empty([self._num_floats, rows], np.float32)
        integers = np.empty([self._num_columns - self._num_floats, rows], np.int64)
        self._copy(
            data,
            columns,
            _address(places),
            ctypes.c_int64(rows),
            _address(floats),
            _address(integers),
        )
        return Request(rows=rows, floats=floats, integers=integers, lists=())


def _address(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
