"""Factorization machine (Rendle 2010): a linear model plus the products of ids' vectors.

A row has the id's weight and its vector.
"""

import dataclasses
from typing import Any

from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.tables.table_options import TableOptions

from ._columns import (
    click_recommender,
    crossed_columns,
    crosses,
    declare,
    list_combiner,
    make_numerics,
    numeric_bins,
    numeric_waves,
    small,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TableOptions):
    """The factorization machine's options."""

    numeric_bins: int = numeric_bins()
    numeric_waves: int = numeric_waves()
    cross: tuple[str, ...] = crosses()
    list_combiner: str = list_combiner()


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes a factorization machine over a dataset's columns.

    Raises:
      UsageError: the dataset has no categorical column.
    """
    features = declare(
        config,
        dataset.categorical,
        crosses=crossed_columns(config, dataset),
        embedding_dim=1 + config.embedding_dim,
        initializer=small(),
        combiner=config.list_combiner,
    )

    def build() -> Any:
        from embedps.layers.embeddings import Embeddings

        from .networks.linear import FactorizationMachine

        return FactorizationMachine(
            Embeddings(features),
            label=dataset.label,
            numerics=make_numerics(dataset, config.numeric_bins, config.numeric_waves),
        )

    return click_recommender("fm", config, dataset, build)
