"""The C++ kernels as TensorFlow ops, built if they are stale and loaded once per process."""

import ctypes
import functools
from typing import Any

from embedps.errors import KernelBuildError


@functools.cache
def library() -> ctypes.CDLL:
    """Returns the kernels' plain C functions: `embedps_leave`, `embedps_released` and so on."""
    from embedps.kernels import build as _build

    load()
    functions = ctypes.CDLL(str(_build.build()))
    functions.embedps_released.restype = ctypes.c_bool
    functions.embedps_secs_since_probe.restype = ctypes.c_double
    return functions


@functools.cache
def load() -> Any:
    """Loads the kernels into this process's TensorFlow.

    A process that runs ops of embedps must call this before its tf.distribute.Server starts.
    Otherwise TensorFlow reports the ops as "not registered".

    Returns:
      The module with the generated op functions: `embedps_lookup` and so on.

    Raises:
      KernelBuildError: the library cannot be built or loaded.
    """
    from embedps.kernels import (
        build as _build,
    )  # not above: `python -m embedps.kernels.build` runs it

    library = _build.build(verbose=True)
    # Imported late: TensorFlow reads environment variables that embedps/__init__.py sets.
    import tensorflow as tf

    # A wheel that was built elsewhere finds the libraries by name only: load them first.
    ctypes.CDLL(str(_build.arrow_library("libparquet")), mode=ctypes.RTLD_LOCAL)
    try:
        return tf.load_op_library(str(library))
    except tf.errors.NotFoundError as error:
        raise KernelBuildError(
            f"{library} does not load ({error}): remove it and run "
            "`python -m embedps.kernels.build`"
        ) from error
