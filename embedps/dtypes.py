"""Lists the dtypes that a model's flags may name, without TensorFlow: --help stays fast."""

from embedps.errors import UsageError

COMPUTE_DTYPES = ("float32", "bfloat16")


def check_compute_dtype(name: str) -> None:
    """Checks the name of a dtype to compute in.

    Raises:
      UsageError: it is not one of COMPUTE_DTYPES.
    """
    if name not in COMPUTE_DTYPES:
        raise UsageError(f"compute_dtype must be one of {', '.join(COMPUTE_DTYPES)} but got {name}")
