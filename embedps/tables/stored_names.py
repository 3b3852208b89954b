"""Names of settings in checkpoints, where a declaration has another: the format keeps its own."""

from collections.abc import Mapping
from typing import Any, Final

STORED_NAMES: Final = {"embedding_dim": "dim"}
_FIELDS = {stored: field for field, stored in STORED_NAMES.items()}


def to_stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Renames a declaration's settings as checkpoints have them."""
    return {STORED_NAMES.get(name, name): value for name, value in settings.items()}


def from_stored(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Renames what a checkpoint has as the declaration does; other names stay."""
    return {_FIELDS.get(name, name): value for name, value in stored.items()}
