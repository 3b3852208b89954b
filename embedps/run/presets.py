"""Defaults for a kind of data: `--preset small`, `--preset retrieval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embedps.config_fields import options_of
from embedps.errors import UsageError
from embedps.run.config import TrainConfig
from embedps.run.evaluation_config import INNER_LOSS

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Chosen on rows split off the rows to train on of real samples (docs/guides/tuning.md): below
    # 100,000 rows, the large defaults take too few steps, and then overfit.
    "small": {
        "batch_size": 256,
        "unit_rows": 8192,
        "epochs": 20,
        "eval": "inline",
        "schedule": "linear",
        # As the rates fall to 0, the last epoch is about the best where ids and numbers cannot
        # be learned by heart. Where they can, an earlier one is, as rows of its own tell the run.
        "inner_share": 0.1,
        "metric": INNER_LOSS,
        "stop_patience": 3,
        "tolerance": 0.03,
        "end_with": "best",
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
    },
    # Chosen on the valid splits of Amazon Beauty, where a user has 6 items, and of lastfm and
    # MovieLens 1M, where one has 40 and 130 (docs/reference/proofs.md); the epochs on
    # that of lastfm alone.
    "retrieval": {
        "history": "history",
        "held_out": "held_out",
        "seen": "seen",
        # The rows of users of few items learn these by heart within a few epochs, but the items'
        # rows do not: the query is mostly the mean of these, which need to tell many items apart.
        "history_table": "item",
        "history_weight": 0.8,
        "embedding_dim": 512,
        "epochs": 6,
        "row_stddev": 0.005,
        "sparse_optimizer": "sgd",
        "sparse_learning_rate": 1.6,
        "schedule": "linear",
        "normalize": True,
        "temperature": 0.12,
        "num_negatives": 1000,
        "batch_size": 1024,
        "unit_rows": 8192,
        "eval": "inline",
        "metric": "recall@20",
    },
}
OF_MODELS: Mapping[str, Mapping[str, Any]] = {
    # The products of rows diverge at the rate of the others.
    "fm": {"sparse_learning_rate": 0.3},
    "deepfm": {"sparse_learning_rate": 0.3},
    # Its bias and the weights of numbers begin at 0, and do not get far in so few steps of 0.001.
    "logistic_regression": {"dense_learning_rate": 0.003},
}


WATCHING = ("inner_share", "metric", "stop_patience", "tolerance", "end_with")
"""The options by which a run stops by its inner rows."""


def preset_values(
    name: str | None, model: str, given: Mapping[str, Any], *configs: type
) -> dict[str, Any]:
    """Gives the values of a preset that configs have options for.

    Args:
      name: one of PRESETS; None is no preset.
      model: of the zoo, or the user's own.
      given: what flags and files say. If they leave no inner rows, nothing goes by them.

    Raises:
      UsageError: the preset is not of the model.
    """
    if name is None:
        return {}
    if name == "retrieval" and model != "two_tower":
        raise UsageError(f"--preset retrieval must be of two_tower, but --model is {model}")
    known = {option.name for config in configs for option in options_of(config)}
    values = {**PRESETS[name], **OF_MODELS.get(model, {})}
    is_blind = name == "small" and not _can_watch({**values, **given})
    left_out = WATCHING if is_blind else ()
    return {k: v for k, v in values.items() if k in known and k not in left_out}


def _can_watch(values: Mapping[str, Any]) -> bool:
    """Tells whether a run can be scored on inner rows."""
    return bool(values["eval"] != "sidecar" and values["inner_share"] and not values.get("watch"))


def preset_line(name: str, config: TrainConfig) -> str:
    """Says what a preset chose for a run, and why."""
    asked, optimizer = config.evaluation, config.optimizer
    if name == "retrieval":
        return (
            f"--preset retrieval, for users and their items: {config.epochs} epochs, as fewer end "
            "too early; queries are mostly means of items' rows, "
            f"which begin near 0 and learn at {optimizer.sparse_learning_rate:g} with schedule "
            f"{optimizer.schedule}; your flags win over it"
        )
    share = f"{asked.inner_share:.0%} of the rows, which it does not train on"
    worse = f"worse than its best by more than {asked.tolerance:.0%}"
    watches = (
        f"stops once {asked.metric} on {share}, was {worse} in {asked.stop_patience} scorings "
        f"in a row, and then ends with its {asked.end_with} checkpoint"
    )
    if not asked.inner_share:
        watches = "watches no rows of its own, so look at the scores of its epochs"
    return (
        f"--preset {name}, for less than about 100,000 rows, where the large defaults take too few "
        f"steps and then overfit: batches of {config.batch_size}, at most {config.epochs} epochs, "
        f"rows at {optimizer.sparse_learning_rate:g} with schedule {optimizer.schedule}; the run "
        f"{watches}; your flags win over it"
    )
