"""How requests share batches."""

from __future__ import annotations

import dataclasses

from embedps.config_fields import MAX_COUNT, check, option

_MAX_WAITING = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
    """How requests share batches."""

    batch_size: int = option(
        1024,
        "requests share a batch up to so many records",
        least=1,
        most=MAX_COUNT,
    )
    part_rows: int = option(
        1024,
        "a request of more records is scored in parts of so many, and others in between",
        least=1,
        most=MAX_COUNT,
    )
    batch_wait_ms: float = option(
        0.0,
        "how long a request waits for others to share its batch",
        least=0,
        most=1000,
    )
    max_waiting: int = option(
        64,
        "requests per model that may wait; the next gets RESOURCE_EXHAUSTED",
        least=1,
        most=_MAX_WAITING,
    )

    def __post_init__(self) -> None:
        check(self)
