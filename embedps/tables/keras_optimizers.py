"""Row optimizers that equal those of Keras: `TableSpec(optimizer=tf.keras.optimizers.SGD(0.1))`."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from embedps.config_fields import shown
from embedps.errors import UsageError
from embedps.tables.optimizers import SGD, Adagrad, Ftrl, Optimizer

_TWINS: dict[str, type[Optimizer]] = {cls.__name__: cls for cls in (SGD, Adagrad, Ftrl)}
_WITHOUT_EFFECT = {
    *("name", "jit_compile", "is_legacy_optimizer"),
    *("ema_momentum", "ema_overwrite_frequency"),  # of use_ema
}
_DEFAULTS = {"learning_rate_power": -0.5}
_INSTEAD = {
    "Adam": "embedps.LazyAdam(), which leaves rows without a gradient alone",
    "weight_decay": "an embedps optimizer with weight_decay, which decays the rows of a step alone",
    "clipnorm": "the run's row_clip_norm",
}


def twin_of(optimizer: Any) -> Optimizer:
    """Makes the row optimizer that updates the rows of a step as an optimizer of Keras 2 or 3 does.

    Keras' Adagrad divides by the root of accumulator + epsilon, ours by root + epsilon: so its
    epsilon becomes a part of the accumulator's initial value. Keras' Ftrl makes rows 0 that no step
    has shown yet; they keep their first values here.

    Raises:
      UsageError: it is no optimizer of Keras, or none of rows does what it does.
    """
    name = type(optimizer).__name__
    modules = type(optimizer).__module__.split(".")
    if isinstance(optimizer, type) or modules[0] not in ("keras", "tf_keras"):
        raise UsageError(
            "optimizer must be one of embedps, such as RowwiseAdagrad(), or SGD, Adagrad or Ftrl "
            f"of Keras, but got {shown(optimizer)}"
        )
    if name not in _TWINS or "legacy" in modules:
        raise UsageError(
            f"Keras' {name} has no twin for rows; {', '.join(_TWINS)} have: use "
            f"{_INSTEAD.get(name, 'one of these or one of embedps')}"
        )
    given = optimizer.get_config()
    fields = {k: v for k, v in given.items() if k in _TWINS[name].__dataclass_fields__}
    weight_decay = fields.pop("weight_decay", None)
    rest = {k: v for k, v in given.items() if k not in fields and k not in _WITHOUT_EFFECT}
    for setting, value in (rest | {"weight_decay": weight_decay}).items():
        if value and value != _DEFAULTS.get(setting):
            instead = f": use {_INSTEAD[setting]}" if setting in _INSTEAD else ": leave it out"
            raise UsageError(f"Keras' {name}({setting}={shown(value)}) has no twin{instead}")
    if not isinstance(fields["learning_rate"], numbers.Real):
        raise UsageError(
            f"the learning_rate of Keras' {name} must be a number for rows but is "
            f"{shown(fields['learning_rate'])}: give a schedule to embedps.Embeddings or to the "
            "Recommender's row_schedule"
        )
    fields["learning_rate"] = float(str(np.float32(fields["learning_rate"])))  # Keras rounded it
    if name == "Adagrad":
        fields["initial_accumulator_value"] += fields.pop("epsilon")
        fields["epsilon"] = 0.0
    return _TWINS[name](**fields)
