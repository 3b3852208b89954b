"""The C++ kernels as TensorFlow ops, built when stale and loaded once a process."""

import ctypes
import functools
from pathlib import Path
from typing import Any

from embedps.errors import KernelBuildError


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded kernels' plain C functions: `embedps_leave`, `embedps_released`, ...

    Needs no more of TensorFlow than `tf_startup.import_runtime`.
    """
    path = _load_into_runtime()
    functions = ctypes.CDLL(str(path))
    functions.embedps_released.restype = ctypes.c_bool
    functions.embedps_secs_since_probe.restype = ctypes.c_double
    return functions


@functools.cache
def load() -> Any:
    """Loads the kernels into this process's TensorFlow.

    Every process that runs an op of embedps must call this, or `library`, before its
    tf.distribute.Server starts, or the ops are "not registered" there.

    Returns:
      The module of generated op functions (`embedps_lookup` and so on).

    Raises:
      KernelBuildError: the library cannot be built or loaded.
    """
    path = _load_into_runtime()
    import tensorflow as tf

    return tf.load_op_library(str(path))


@functools.cache
def _load_into_runtime() -> Path:
    """Registers the ops and kernels with TensorFlow's runtime; gives the library's path.

    Raises:
      KernelBuildError: the library cannot be built or loaded.
    """
    from embedps.kernels import (
        build as _build,
    )  # not above: `python -m embedps.kernels.build` runs it

    path = _build.build(verbose=True)
    # TensorFlow's first import, where it was not: it reads what embedps/__init__.py sets.
    from tensorflow.python.client import pywrap_tf_session
    from tensorflow.python.framework import errors

    # A wheel built elsewhere knows the libraries by name only: have them loaded already.
    ctypes.CDLL(str(_build.arrow_library("libparquet")), mode=ctypes.RTLD_LOCAL)
    try:
        pywrap_tf_session.TF_LoadLibrary(str(path))
    except errors.NotFoundError as error:
        raise KernelBuildError(
            f"{path} does not load ({error}): remove it and run `python -m embedps.kernels.build`"
        ) from error
    return path
