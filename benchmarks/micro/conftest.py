"""Adapts the description of the machine in the results."""

from typing import Any


def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    """Removes the host name."""
    del machine_info["node"]
