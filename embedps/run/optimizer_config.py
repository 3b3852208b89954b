"""The optimizer options of a run: learning rates, and how the network is updated."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, TypeAlias

from embedps.config_fields import MAX_COUNT, check, option

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
        0.05,
        "learning rate of the embedding tables, unless their optimizers bring one",
        above=0,
        most=MAX_RATE,
    )
    dense_learning_rate: float = option(
        0.001, "learning rate of the network", above=0, most=MAX_RATE
    )
    dense_optimizer: DenseOptimizer = option(
        "adam", "optimizer of the network, unless the model brings its own"
    )

    dense_weight_decay: float = option(
        0.0,
        "a step first takes this share of the network's weights, times the learning rate",
        least=0,
        most=MAX_RATE,
    )
    dense_clip_norm: float = option(
        0.0,
        "largest norm of a step's gradients of the network, all together; 0 is no limit",
        least=0,
        most=MAX_RATE,
    )
    row_clip_norm: float = option(
        0.0,
        "largest norm of a step's gradient of each row; 0 is no limit",
        least=0,
        most=MAX_RATE,
    )
    rates_batch_size: int = option(
        0,
        "examples per update that both learning rates are meant for: with others, they are "
        "multiplied by the ratio of the two (Goyal et al. 2017); 0 takes them as they are",
        least=0,
        most=MAX_COUNT,
    )
    schedule: Literal["constant", "linear", "cosine"] = option(
        "constant", "how both learning rates fall to 0 over the run, by units"
    )
    warmup: float = option(
        0.0, "share of the run in which both learning rates rise from 0", least=0, below=1
    )

    def __post_init__(self) -> None:
        check(self)

    def rate_factor(self, share: float) -> float:
        """Gives the factor of the learning rates after a share of the run, from 0 to 1."""
        if share < self.warmup:
            return share / self.warmup
        left = (1 - share) / (1 - self.warmup)
        if self.schedule == "linear":
            return left
        return 1.0 if self.schedule == "constant" else (1 - math.cos(math.pi * left)) / 2

    @property
    def is_constant(self) -> bool:
        """Whether the learning rates stay as they are."""
        return self.schedule == "constant" and not self.warmup
