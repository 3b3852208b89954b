"""Sparse optimizers, as a user declares them. kernels/store/optimizers.h has the formulas."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from embedps.config_fields import check_types, check_value
from embedps.errors import UsageError
from embedps.tables.stored_names import to_stored

__all__ = ["SGD", "Adagrad", "Ftrl", "LazyAdam", "Optimizer", "RowwiseAdagrad"]

Schedule: TypeAlias = Callable[[Any], Any]
"""Gives the learning rate of a step, of its number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Updates rows from their gradients.

    Attributes:
      learning_rate: of the table's rows, or a schedule of it over steps, such as one of
        tf.keras.optimizers.schedules; None leaves it to the run or to `embedps.Embeddings`. What
        the run multiplies its own rate by, such as `schedule`, it multiplies this by too.
      weight_decay: a step first takes this share of the rows that it updates, times its learning
        rate (Loshchilov and Hutter 2019). Rows that it does not update do not decay.
      lazy_decay: L2 penalty of all rows, in each step half of this times their squares. An update
        makes up for the steps since the row's last one, and divides it by 1 + learning rate *
        lazy_decay * steps. Rows do not decay by what follows their last update.
      clip_norm: largest norm of a batch's gradient of each row; 0 leaves it to the run.
    """

    kind: ClassVar[str]
    moves_by_zero: ClassVar[bool] = False  # a gradient of zero changes the row
    learning_rate: float | Schedule | None = None
    weight_decay: float = 0.0
    lazy_decay: float = 0.0
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        check_types(self, f"{type(self).__name__}.")
        rate = self.learning_rate
        if not callable(rate):
            check_value(f"{type(self).__name__}.learning_rate", float | None, rate, {})
        for field in dataclasses.fields(self):
            value = None if callable(getattr(self, field.name)) else getattr(self, field.name)
            bound = 1.0 if field.name.startswith("beta") else float("inf")
            if value is not None and not 0 <= value < bound:
                raise UsageError(
                    f"{type(self).__name__}.{field.name} must be in [0, {bound:g}) but got {value}"
                )

    def settings(self) -> dict[str, float]:
        """Returns the optimizer's numbers by the names that checkpoints and kernels have."""
        steps = ("learning_rate", "clip_norm")  # what each step is told, or does itself
        names = [f.name for f in dataclasses.fields(self) if f.name not in steps]
        return to_stored({name: getattr(self, name) for name in names})

    def optimizer_slot_widths(self, dim: int) -> dict[str, int]:
        """Returns the floats per row of each optimizer slot, in stored order."""
        raise NotImplementedError


def _check_divisor(optimizer: Optimizer, *terms: float) -> None:
    """Checks that a gradient of zero does not divide zero by zero: a term must be above zero."""
    if not any(terms):
        raise UsageError(f"{optimizer} would divide by zero: epsilon must be above 0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent: w -= lr g."""

    kind: ClassVar[str] = "sgd"

    def optimizer_slot_widths(self, dim: int) -> dict[str, int]:
        return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """Adagrad with one accumulator per weight (Duchi et al. 2011). The defaults are Keras's."""

    kind: ClassVar[str] = "adagrad"
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_divisor(self, self.initial_accumulator_value, self.epsilon)

    def optimizer_slot_widths(self, dim: int) -> dict[str, int]:
        return {"accumulator": dim}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowwiseAdagrad(Optimizer):
    """Adagrad with one accumulator per row, of the mean squared gradient.

    It equals EXACT_ROWWISE_ADAGRAD of FBGEMM.
    """

    kind: ClassVar[str] = "rowwise_adagrad"
    initial_accumulator_value: float = 0.0
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_divisor(self, self.initial_accumulator_value, self.epsilon)

    def optimizer_slot_widths(self, dim: int) -> dict[str, int]:
        return {"accumulator": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LazyAdam(Optimizer):
    """Adam on touched rows only (Kingma and Ba 2015).

    The bias correction uses the row's own number of updates.
    """

    kind: ClassVar[str] = "lazy_adam"
    moves_by_zero: ClassVar[bool] = True
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_divisor(self, self.epsilon)

    def optimizer_slot_widths(self, dim: int) -> dict[str, int]:
        return {"m": dim, "v": dim}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ftrl(Optimizer):
    """FTRL-proximal with learning-rate power 1/2 (McMahan et al. 2013).

    It has `l2_regularization_strength`, no decay: its weights follow from its slots.
    """

    kind: ClassVar[str] = "ftrl"
    moves_by_zero: ClassVar[bool] = True
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("weight_decay", "lazy_decay"):
            if getattr(self, name):
                raise UsageError(f"ftrl has no {name}: use its l2_regularization_strength")

    def optimizer_slot_widths(self, dim: int) -> dict[str, int]:
        return {"linear": dim, "accumulator": dim}


BY_KIND: dict[str, type[Optimizer]] = {cls.kind: cls for cls in Optimizer.__subclasses__()}


def rate_config(rate: Any) -> Any:
    """Gives a learning rate as JSON has it.

    Raises:
      UsageError: it is a function of the caller's own.
    """
    if not callable(rate):
        return rate
    import tensorflow as tf  # declarations do without it

    schedules = tf.keras.optimizers.schedules
    if not isinstance(rate, schedules.LearningRateSchedule):
        raise UsageError(
            "a config must have a learning_rate that is a number or one of "
            f"tf.keras.optimizers.schedules, but it is the function {rate!r:.60}: a function "
            "cannot be saved"
        )
    return schedules.serialize(rate)


def rate_of(config: Any) -> Any:
    """Makes the learning rate of which `rate_config` gave this."""
    if not isinstance(config, Mapping):
        return config
    import tensorflow as tf

    return tf.keras.optimizers.schedules.deserialize(dict(config))


def make(kind: str, **settings: Any) -> Optimizer:
    """Makes the optimizer of a kind, with its defaults for other settings.

    Raises:
      UsageError: there is no such kind, or a setting is out of range.
    """
    if kind not in BY_KIND:
        raise UsageError(
            f"the sparse optimizer must be one of {', '.join(BY_KIND)} but got {kind!r}"
        )
    return BY_KIND[kind](**settings)
