"""The C++ kernels as TensorFlow ops, built if they are stale and loaded once per process."""

import ctypes
import functools
from pathlib import Path
from typing import Any

import embedps
from embedps.constants import CHECKPOINT_VERSION
from embedps.errors import KernelBuildError


@functools.cache
def library() -> ctypes.CDLL:
    """Returns the kernels' plain C functions: `embedps_leave`, `embedps_released` and so on.

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

    A process that runs ops of embedps must call this, or `library`, before its
    tf.distribute.Server starts. Otherwise TensorFlow reports the ops as "not registered".

    Returns:
      The module with the generated op functions: `embedps_lookup` and so on.

    Raises:
      KernelBuildError: the library cannot be built or loaded.
    """
    path = _load_into_runtime()
    import tensorflow as tf

    return tf.load_op_library(str(path))


def versions() -> str:
    """Names what all tasks of a cluster must have in common."""
    from tensorflow.python.client import pywrap_tf_session

    return (
        f"embedps {embedps.__version__}, TensorFlow {pywrap_tf_session.get_version()} "
        f"and checkpoint format {CHECKPOINT_VERSION}"
    )


@functools.cache
def _load_into_runtime() -> Path:
    """Registers the ops and kernels with TensorFlow's runtime. Returns the library's path.

    Raises:
      KernelBuildError: the library cannot be built or loaded.
    """
    from embedps.kernels import (
        build as _build,
    )  # not above: `python -m embedps.kernels.build` runs it

    path = _build.build(verbose=True)
    # Imported late: TensorFlow reads environment variables that embedps/__init__.py sets.
    from tensorflow.python.client import pywrap_tf_session
    from tensorflow.python.framework import errors

    # A wheel that was built elsewhere finds the libraries by name only: load them first.
    ctypes.CDLL(str(_build.arrow_library("libparquet")), mode=ctypes.RTLD_LOCAL)
    try:
        pywrap_tf_session.TF_LoadLibrary(str(path))
    except errors.NotFoundError as error:
        raise KernelBuildError(
            f"{path} does not load ({error}): remove it and run `python -m embedps.kernels.build`"
        ) from error
    from embedps.kernels import vector_function  # which imports NumPy

    functions = ctypes.CDLL(str(path))
    functions.embedps_set_version(versions().encode())
    vector_function.set_up(functions)
    return path
