"""Defaults for a kind of data: `--preset small`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embedps.config_fields import options_of

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Chosen on rows split off the rows to train on of real samples (docs/guides/tuning.md): below
    # 100,000 rows, the large defaults take too few steps, and then overfit.
    "small": {
        "batch_size": 256,
        "unit_rows": 8192,
        "epochs": 20,
        "eval": "inline",
        # As the rates fall to 0, the last epoch is about the best, so the number of epochs
        # needs no held-out rows.
        "schedule": "linear",
        "keep_best": 1,
        # The steps of SGD are in proportion to an id's rows, so rare ids stay near 0. Adagrad's are
        # as large for an id of one row as for one of thousands.
        "sparse_optimizer": "sgd",
        "sparse_learning_rate": 1.0,
        "embedding_dim": 8,
        "bottom_mlp": (64,),
        "top_mlp": (64, 32),
        "deep_mlp": (64, 32),
        "expert_mlp": (32,),
        "dropout": 0.5,
        "numeric_bins": 16,
    }
}
OF_MODELS: Mapping[str, Mapping[str, Any]] = {
    # The products of rows diverge at the rate of the others.
    "fm": {"sparse_learning_rate": 0.3},
    "deepfm": {"sparse_learning_rate": 0.3},
}


def preset_values(name: str | None, model: str, *configs: type) -> dict[str, Any]:
    """Gives the values of a preset that configs have options for.

    Args:
      name: one of PRESETS; None is no preset.
      model: of the zoo, or the user's own.
    """
    if name is None:
        return {}
    known = {option.name for config in configs for option in options_of(config)}
    values = {**PRESETS[name], **OF_MODELS.get(model, {})}
    return {k: v for k, v in values.items() if k in known}
