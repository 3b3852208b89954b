"""Sparse optimizers, as a user declares them. kernels/store/optimizers.h has the formulas."""

import dataclasses
from typing import ClassVar

from embedps.config_fields import check_types
from embedps.errors import UsageError
from embedps.tables.stored_names import to_stored

__all__ = ["SGD", "Adagrad", "Ftrl", "LazyAdam", "Optimizer", "RowwiseAdagrad"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Updates rows from their gradients.

    Attributes:
      learning_rate: of the rows, one for all tables; None leaves it to the run or to
        `embedps.Embeddings`.
      weight_decay: a step first takes this share of the rows that it updates, times its learning
        rate (Loshchilov and Hutter 2019). Rows that it does not update do not decay.
    """

    kind: ClassVar[str]
    moves_by_zero: ClassVar[bool] = False  # a gradient of zero changes the row
    learning_rate: float | None = dataclasses.field(default=None, compare=False)
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_types(self, f"{type(self).__name__}.")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            bound = 1.0 if field.name.startswith("beta") else float("inf")
            if value is not None and not 0 <= value < bound:
                raise UsageError(
                    f"{type(self).__name__}.{field.name} must be in [0, {bound:g}) but got {value}"
                )

    def settings(self) -> dict[str, float]:
        """Returns the optimizer's numbers by the names that checkpoints and kernels have."""
        settings = to_stored(dataclasses.asdict(self))
        del settings["learning_rate"]  # each step has its own
        return settings

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

    It has `l2_regularization_strength`, no weight decay: its weights follow from its slots.
    """

    kind: ClassVar[str] = "ftrl"
    moves_by_zero: ClassVar[bool] = True
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay:
            raise UsageError("ftrl has no weight_decay: use its l2_regularization_strength")

    def optimizer_slot_widths(self, dim: int) -> dict[str, int]:
        return {"linear": dim, "accumulator": dim}


BY_KIND: dict[str, type[Optimizer]] = {cls.kind: cls for cls in Optimizer.__subclasses__()}


def make(kind: str, **settings: float) -> Optimizer:
    """Makes the optimizer of a kind, with its defaults for other settings.

    Raises:
      UsageError: there is no such kind, or a setting is out of range.
    """
    if kind not in BY_KIND:
        raise UsageError(
            f"the sparse optimizer must be one of {', '.join(BY_KIND)} but got {kind!r}"
        )
    return BY_KIND[kind](**settings)
