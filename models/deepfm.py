"""DeepFM (Guo et al. 2017, arXiv:1703.04247): a factorization machine and a deep part, added.

A row has the id's weight and the vector that both parts share.
"""

import dataclasses
from typing import Any

from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender

from ._columns import (
    NetworkConfig,
    check_row_l2,
    click_recommender,
    crossed_columns,
    crosses,
    declare,
    dropout,
    list_combiner,
    make_numerics,
    numeric_bins,
    numeric_standard,
    numeric_waves,
    penalty_per_row,
    row_l2,
    small,
    widths,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(NetworkConfig):
    """DeepFM's options."""

    deep_mlp: tuple[int, ...] = widths(
        (256, 128), "widths of the deep layers; a last layer of one logit is added"
    )
    dropout: float = dropout()
    numeric_bins: int = numeric_bins()
    numeric_waves: int = numeric_waves()
    numeric_standard: bool = numeric_standard()
    row_l2: float = row_l2()
    cross: tuple[str, ...] = crosses()
    list_combiner: str = list_combiner()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_row_l2(self.row_l2, self.sparse_optimizer)


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes a DeepFM model over a dataset's columns.

    Raises:
      UsageError: the dataset has no categorical column.
    """
    return make_added("deepfm", config, dataset, pairwise=True)


def make_added(name: str, config: Config, dataset: Dataset, *, pairwise: bool) -> Recommender:
    """Makes a model of a linear and a deep part; `pairwise` adds the products of ids' vectors."""
    features = declare(
        config,
        dataset.categorical,
        crosses=crossed_columns(config, dataset),
        embedding_dim=1 + config.embedding_dim,
        initializer=small(),
        combiner=config.list_combiner,
        lazy_decay=penalty_per_row(dataset, config.row_l2),
    )

    def build() -> Any:
        from embedps.layers.embeddings import Embeddings

        from .networks.wide_deep import WideDeep

        return WideDeep(
            Embeddings(features),
            label=dataset.label,
            deep_mlp=config.deep_mlp,
            pairwise=pairwise,
            dropout=config.dropout,
            compute_dtype=config.compute_dtype,
            numerics=make_numerics(
                dataset,
                config.numeric_bins,
                config.numeric_waves,
                standard=config.numeric_standard,
            ),
        )

    return click_recommender(name, config, dataset, build)
