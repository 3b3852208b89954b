"""How a server ranks a retrieval model's items."""

from __future__ import annotations

import dataclasses
from typing import Literal

from embedps.errors import UsageError
from embedps.serving import unknown_queries
from embedps.serving.unknown_queries import UnknownQuery

ItemChoice = Literal["rows", "dataset"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranking:
    """Options of the ranking.

    Attributes:
      items: rank those that have a row, or all that the model declares, as an evaluation does.
      default_k: how many items a request gets that does not say it.
      max_k: how many it may ask for.
      encode_rate: items to encode per second at most, when the network encodes them otherwise.
      ivf_above: more items than that are searched by an IVF, if faiss is installed.
      ivf_recall: which share of the exact best items the IVF is tuned to find, at least.
      unknown_query: what a query gets none of whose ids has a row that training updated: the most
        popular items, those of the best scores nevertheless, or an error.
    """

    items: ItemChoice = "rows"
    default_k: int = 100
    max_k: int = 1000
    encode_rate: float = 500_000.0
    ivf_above: int = 1_000_000
    ivf_recall: float = 0.95
    unknown_query: UnknownQuery = unknown_queries.DEFAULT

    def __post_init__(self) -> None:
        if self.default_k > self.max_k:
            raise UsageError(
                f"--top-k must be at most --max-top-k, {self.max_k}, but is {self.default_k}"
            )
