"""Names of settings in checkpoints and kernels, where a declaration has Keras' names."""

from collections.abc import Mapping
from typing import Any, Final

STORED_NAMES: Final = {
    "embedding_dim": "dim",
    "initial_accumulator_value": "initial_accumulator",
    "beta_1": "beta1",
    "beta_2": "beta2",
    "l1_regularization_strength": "l1",
    "l2_regularization_strength": "l2",
}
_FIELDS = {stored: field for field, stored in STORED_NAMES.items()}


def to_stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Renames a declaration's settings as checkpoints have them."""
    return {STORED_NAMES.get(name, name): value for name, value in settings.items()}


def from_stored(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Renames what a checkpoint has as the declaration does; other names stay."""
    return {_FIELDS.get(name, name): value for name, value in stored.items()}
