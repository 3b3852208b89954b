"""Logistic regression over hashed ids, the baseline that any click model must reach.

A weight per id and per number, as in McMahan et al. 2013, "Ad Click Prediction: a View from the
Trenches". With `--sparse-optimizer ftrl` the weights of ids are updated as there.
"""

import dataclasses
from typing import Any

from embedps.config_fields import check, option
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.tables import Initializer
from embedps.tables.optimizers import BY_KIND
from embedps.tables.table_options import PolicyOptions, TableOptions

from ._columns import (
    base_rate_logit,
    check_row_l2,
    click_recommender,
    crossed_columns,
    crosses,
    declare,
    list_combiner,
    make_numerics,
    numeric_bins,
    numeric_l2,
    numeric_standard,
    numeric_waves,
    penalty_per_row,
    row_l2,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PolicyOptions):
    """Logistic regression's options."""

    sparse_optimizer: str = option(
        "adagrad", "optimizer of the ids' weights", choices=tuple(BY_KIND)
    )

    row_weight_decay: float = option(
        0.0,
        "a step takes this share of the weights that it updates, times their learning rate",
        least=0,
        most=1e30,
    )

    numeric_bins: int = numeric_bins()
    numeric_waves: int = numeric_waves()
    numeric_standard: bool = numeric_standard()
    numeric_l2: float = numeric_l2()
    row_l2: float = row_l2()
    cross: tuple[str, ...] = crosses()
    list_combiner: str = list_combiner()

    def __post_init__(self) -> None:
        check(self)
        self.tables()
        check_row_l2(self.row_l2, self.sparse_optimizer)

    def tables(self) -> TableOptions:
        """Makes the options of tables of single weights, without the penalty of these."""
        return TableOptions(
            embedding_dim=1,
            sparse_optimizer=self.sparse_optimizer,
            row_weight_decay=self.row_weight_decay,
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(PolicyOptions)},
        )


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes a logistic regression over a dataset's columns.

    Raises:
      UsageError: the dataset has no categorical column.
    """
    made_ids = crossed_columns(config, dataset)
    features = declare(
        config.tables(),
        dataset.categorical,
        crosses=made_ids,
        initializer=Initializer(),
        combiner=config.list_combiner,
        lazy_decay=penalty_per_row(dataset, config.row_l2),
    )

    def build() -> Any:
        from embedps.layers.embeddings import Embeddings

        from .networks.linear import Linear, LogisticRegression

        return LogisticRegression(
            Embeddings(features),
            label=dataset.label,
            numerics=make_numerics(
                dataset,
                config.numeric_bins,
                config.numeric_waves,
                standard=config.numeric_standard,
            ),
            linear=Linear(
                penalty_per_row(dataset, config.numeric_l2) / 2, base_rate_logit(dataset)
            ),
        )

    return click_recommender("logistic_regression", config, dataset, build)
