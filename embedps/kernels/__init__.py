"""The C++ kernels as TensorFlow ops, built when stale and loaded once a process."""

import ctypes
import functools
from typing import Any

from embedps.errors import KernelBuildError


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded kernels' plain C functions: `embedps_leave`, `embedps_released`, ..."""
    from embedps.kernels import build as _build

    load()
    functions = ctypes.CDLL(str(_build.build()))
    functions.embedps_released.restype = ctypes.c_bool
    functions.embedps_secs_since_probe.restype = ctypes.c_double
    return functions


@functools.cache
def load() -> Any:
    """Loads the kernels into this process's TensorFlow.

    Every process that runs an op of embedps must call this before its tf.distribute.Server starts,
    or the ops are "not registered" there.

    Returns:
      The module of generated op functions (`embedps_lookup` and so on).

    Raises:
      KernelBuildError: the library cannot be built or loaded.
    """
    from embedps.kernels import (
        build as _build,
    )  # not above: `python -m embedps.kernels.build` runs it

    library = _build.build(verbose=True)
    # Before TensorFlow's first import anywhere: it reads the variables embedps/__init__.py sets.
    import tensorflow as tf

    # A wheel built elsewhere knows the libraries by name only: have them loaded already.
    ctypes.CDLL(str(_build.arrow_library("libparquet")), mode=ctypes.RTLD_LOCAL)
    try:
        return tf.load_op_library(str(library))
    except tf.errors.NotFoundError as error:
        raise KernelBuildError(
            f"{library} does not load ({error}): remove it and run "
            "`python -m embedps.kernels.build`"
        ) from error
