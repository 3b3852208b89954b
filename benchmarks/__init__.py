"""Benchmarks: each writes JSON, and compares within one run by ratios."""

from embedps.errors import UsageError
from embedps.run.shipped_packages import check_shipped

try:
    check_shipped("models", "pipelines")
except UsageError as error:
    raise SystemExit(f"embedps: {error}") from None
