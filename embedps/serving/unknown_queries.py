"""Queries none of whose ids is known: how an answer tells them, and what they get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from embedps.config_fields import option

if TYPE_CHECKING:  # these import TensorFlow, which --help does not wait for
    from embedps.layers.candidates import Candidates
    from embedps.tables.specs import FeatureSpec

UnknownQuery: TypeAlias = Literal["popular", "score", "error"]

UNKNOWN: Final = "unknown"  # of an answer: whether no id of the query is known
DEFAULT: Final[UnknownQuery] = "popular"
NOT_POPULAR: Final = (
    "the items have no rows of their own that tell which are popular, so unknown queries get an "
    "error: see --unknown-query"
)


def choice() -> Any:
    """Declares the option of what such a query gets."""
    return option(
        DEFAULT,
        "what a query gets none of whose ids has been trained: the items whose rows are updated "
        "most, those of the best scores nevertheless, or an error",
    )


def own_table(candidates: Candidates, features: Sequence[FeatureSpec]) -> str | None:
    """Gives the table of items' own rows, whose updates tell which items are popular.

    It is that in which their tower looks up their identifiers; None if these are no int64, or it
    looks them up nowhere.
    """
    name = candidates.identifier
    if name is None or candidates.encoded_specs[1].dtype.name != "int64":
        return None
    return next((f.table_name for f in features if f.name == name), None)
