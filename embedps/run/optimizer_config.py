"""The optimizer options of a run: learning rates, and how the network is updated."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from embedps.config_fields import check, option

MAX_RATE = 1e30
"""The highest learning rate; it is a float32."""

DenseOptimizer: TypeAlias = Literal[
    "sgd", "adagrad", "adam", "adamw", "lion", "rmsprop", "adadelta", "adamax", "ftrl"
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How the embedding tables and the network learn.

    A table's own optimizer is part of its TableSpec; here is only its learning rate.
    """

    sparse_learning_rate: float = option(
        0.05, "learning rate of the embedding tables", above=0, most=MAX_RATE
    )
    dense_learning_rate: float = option(
        0.001, "learning rate of the network", above=0, most=MAX_RATE
    )
    dense_optimizer: DenseOptimizer = option(
        "adam", "optimizer of the network, unless the model brings its own"
    )

    def __post_init__(self) -> None:
        check(self)
