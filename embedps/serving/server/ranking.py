"""How a server ranks a retrieval model's items."""

from __future__ import annotations

import dataclasses
from typing import Literal

from embedps.config_fields import MAX_COUNT, check, option
from embedps.errors import UsageError
from embedps.serving import unknown_queries
from embedps.serving.unknown_queries import UnknownQuery

ItemChoice = Literal["rows", "dataset"]
_MAX_TOP_K = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranking:
    """How a retrieval model's items are ranked."""

    items: ItemChoice = option(
        "rows", "rank the items that have a row, or all of the dataset as an evaluation does"
    )
    top_k: int = option(
        100,
        "items that a retrieval model gives a request that does not say how many",
        least=1,
        most=_MAX_TOP_K,
    )
    max_top_k: int = option(
        1000,
        "items that a request may ask for",
        least=1,
        most=_MAX_TOP_K,
    )
    unknown_query: UnknownQuery = unknown_queries.choice()
    encode_rate: float = option(
        500_000.0,
        "items that are encoded per second at most, beside those that are ranked, when the item "
        "tower changes",
        above=0,
        most=1e9,
    )
    ivf_above: int = option(
        1_000_000,
        "more items than that are not all compared: an IVF of faiss finds candidates",
        least=0,
        most=MAX_COUNT,
    )
    ivf_recall: float = option(
        0.95,
        "share of the exact best items that the IVF is tuned to find, by a sample of queries",
        above=0,
        most=1,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.top_k > self.max_top_k:
            raise UsageError(
                f"--top-k must be at most --max-top-k, {self.max_top_k}, but is {self.top_k}"
            )
