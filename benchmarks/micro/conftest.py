"""What the results say of the machine."""

from typing import Any


def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    """The host's name is nobody's business."""
    del machine_info["node"]
