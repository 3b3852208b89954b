"""Benchmarks of the kernels, of training against other systems, and of the data pipeline."""

from embedps.errors import UsageError
from embedps.run.model_module import check_shipped

try:
    check_shipped("models", "pipelines")
except UsageError as error:
    raise SystemExit(f"embedps: {error}") from None
