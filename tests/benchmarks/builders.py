"""What the suite's tests run on, and short runs of whole benchmarks."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import workload
from tests.commands import run

TINY = dataclasses.replace(
    workload.W1, cardinalities=(3, 1000), dim=4, bottom_mlp=(8, 4), top_mlp=(8, 1)
)
needs_ss = pytest.mark.skipif(shutil.which("ss") is None, reason="ss of iproute2 is not installed")


def run_benchmark(name: str, *flags: str, output: Path) -> dict[str, Any]:
    """Runs a benchmark as its command; returns its result."""
    command = ("-m", f"benchmarks.{name}", *flags, f"--output={output}")
    run(*command, timeout=560)
    result = json.loads(output.read_text())
    assert isinstance(result, dict)
    return result
