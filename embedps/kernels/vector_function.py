"""Has the kernels call functions of the user's, which compute the vectors of new rows.

A kernel calls on a thread of TensorFlow's, without a lock of its own, and waits for Python's.
TensorFlow has let go of that lock wherever it waits for kernels.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from embedps.errors import UsageError

VectorFunction = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]

_Fill = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_float),
    ctypes.c_void_p,
    ctypes.c_int64,
)


def compute(name: str, ids: npt.NDArray[np.int64], dim: int) -> npt.NDArray[np.float32]:
    """Calls the function that a table's initializer names.

    Args:
      name: "module:function"; the function takes ids int64 [n] and returns float32 [n, dim].
      ids: int64 [n].
      dim: floats per vector.

    Raises:
      UsageError: there is no such function, it raises, or returns something else.
    """
    where = f"initializer {name!r}"
    function = find_function(name)
    try:
        found = function(ids)
    except Exception as error:
        raise UsageError(f"{where} must compute vectors but raised {error!r:.300}") from error
    shape = (len(ids), dim)
    is_array = isinstance(found, np.ndarray)
    if not is_array or found.dtype != np.float32 or found.shape != shape:
        got = f"{found.dtype} {list(found.shape)}" if is_array else type(found).__name__
        raise UsageError(f"{where} must return float32 {list(shape)} but returned {got}")
    if not np.isfinite(found).all():
        row = int(np.argmin(np.isfinite(found).all(axis=1)))
        raise UsageError(f"{where} must return finite numbers but not for id {ids[row]}")
    return found


def set_up(library: ctypes.CDLL) -> None:
    """Has a process's kernels call `compute`."""
    library.embedps_set_vector_function(_fill)


@_Fill
def _fill(
    name: bytes, ids: Any, num_ids: int, dim: int, vectors: Any, error: int, error_bytes: int
) -> int:
    try:
        asked = np.ctypeslib.as_array(ids, (num_ids,)).copy()
        np.ctypeslib.as_array(vectors, (num_ids, dim))[:] = compute(name.decode(), asked, dim)
    except BaseException as raised:
        text = str(raised).encode()[: error_bytes - 1] + b"\0"
        ctypes.memmove(error, text, len(text))
        return 1
    return 0


@functools.cache
def find_function(name: str) -> VectorFunction:
    """Imports a function, "module:function".

    Raises:
      UsageError: there is none.
    """
    module, _, path = name.partition(":")
    try:
        found = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except Exception as error:
        raise UsageError(
            f"initializer {name!r} must be a function that each process which holds rows can "
            f"import, without all of TensorFlow on servers, but {error!r:.300}"
        ) from error
    return found  # type: ignore[return-value]
