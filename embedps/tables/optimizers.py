"""Sparse optimizers, as a user declares them; kernels/store/optimizers.h has the formulas."""

import dataclasses
from typing import ClassVar

from embedps.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How a row takes its gradient. The learning rate is an input of each step, not a setting."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            bound = 1.0 if field.name.startswith("beta") else float("inf")
            if not 0 <= value < bound:
                raise UsageError(
                    f"{type(self).__name__}.{field.name} must be in [0, {bound:g}) but got {value}"
                )

    def settings(self) -> dict[str, float]:
        """The optimizer's numbers by name."""
        return dataclasses.asdict(self)

    def slot_widths(self, dim: int) -> dict[str, int]:
        """Floats of each optimizer slot of a row of `dim`, in stored order."""
        raise NotImplementedError


def _check_divisor(optimizer: Optimizer, *terms: float) -> None:
    """A gradient of zero divides zero by these: one of them must be above zero."""
    if not any(terms):
        raise UsageError(f"{optimizer} would divide by zero: epsilon must be above 0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """w -= lr g."""

    kind: ClassVar[str] = "sgd"

    def slot_widths(self, dim: int) -> dict[str, int]:
        return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """One accumulator a weight (Duchi et al. 2011). Defaults are Keras's."""

    kind: ClassVar[str] = "adagrad"
    initial_accumulator: float = 0.1
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_divisor(self, self.initial_accumulator, self.epsilon)

    def slot_widths(self, dim: int) -> dict[str, int]:
        return {"accumulator": dim}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowwiseAdagrad(Optimizer):
    """One accumulator a row, of the mean squared gradient, as FBGEMM's EXACT_ROWWISE_ADAGRAD."""

    kind: ClassVar[str] = "rowwise_adagrad"
    initial_accumulator: float = 0.0
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_divisor(self, self.initial_accumulator, self.epsilon)

    def slot_widths(self, dim: int) -> dict[str, int]:
        return {"accumulator": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LazyAdam(Optimizer):
    """Adam on touched rows (Kingma and Ba 2015); bias corrected by the row's own updates."""

    kind: ClassVar[str] = "lazy_adam"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_divisor(self, self.epsilon)

    def slot_widths(self, dim: int) -> dict[str, int]:
        return {"m": dim, "v": dim}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ftrl(Optimizer):
    """FTRL-proximal with learning-rate power 1/2 (McMahan et al. 2013)."""

    kind: ClassVar[str] = "ftrl"
    initial_accumulator: float = 0.1
    l1: float = 0.0
    l2: float = 0.0

    def slot_widths(self, dim: int) -> dict[str, int]:
        return {"linear": dim, "accumulator": dim}


BY_KIND: dict[str, type[Optimizer]] = {
    cls.kind: cls for cls in (SGD, Adagrad, RowwiseAdagrad, LazyAdam, Ftrl)
}


def make(kind: str) -> Optimizer:
    """The optimizer of that kind, with its defaults.

    Raises:
      UsageError: there is no such kind.
    """
    if kind not in BY_KIND:
        raise UsageError(
            f"the sparse optimizer must be one of {', '.join(BY_KIND)} but got {kind!r}"
        )
    return BY_KIND[kind]()
