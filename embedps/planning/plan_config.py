"""What a plan is made for; each option is a flag of `embedps plan`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from embedps.config_fields import MAX_COUNT, check, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """What to plan for."""

    server_memory_gib: float = option(
        16.0, "memory of a parameter server's machine or container, in GiB", above=0, most=1e6
    )
    cores: int = option(
        0,
        "cores of each worker's and each server's machine; 0: as many as here",
        least=0,
        most=MAX_COUNT,
    )
    link_gbits: float = option(25.0, "Gbit/s of each machine's link", above=0, most=1e6)
    scan: bool = option(
        True,
        "read the whole training split to count rows; otherwise take the dataset's own counts, "
        "which include its eval split",
    )
    measure: bool = option(True, "train here for some seconds, from which speeds are predicted")
    json: Path | None = option(None, "also write every figure to a JSON file")

    def __post_init__(self) -> None:
        check(self)
