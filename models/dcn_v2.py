"""DCN-v2 (Wang et al. 2021, arXiv:2008.13535): cross layers, of low rank too, and a deep network.

The cross layers are those of TensorFlow Recommenders.
"""

import dataclasses
from typing import Any

from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.tables.table_options import TableOptions

from ._columns import (
    click_recommender,
    crossed_columns,
    crosses,
    declare,
    dropout,
    list_combiner,
    make_numerics,
    numeric_bins,
    numeric_waves,
    widths,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TableOptions):
    """DCN-v2's options."""

    cross_layers: int = option(3, "number of cross layers", least=1, most=100)
    cross_rank: int | None = option(
        None, "rank of the cross layers' matrices (default: full rank)", least=1
    )
    deep_mlp: tuple[int, ...] = widths((256, 128), "widths of the deep layers")
    bottom_mlp: tuple[int, ...] = widths(
        (), "widths of layers over the numbers, before the crosses: MLPerf's model has them"
    )
    structure: str = option(
        "stacked",
        "stacked: the deep layers take the crosses; parallel: they take the features",
        choices=("stacked", "parallel"),
    )
    dropout: float = dropout()
    numeric_bins: int = numeric_bins()
    numeric_waves: int = numeric_waves()
    cross: tuple[str, ...] = crosses()
    list_combiner: str = list_combiner()


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes a DCN-v2 over a dataset's columns.

    Raises:
      UsageError: the dataset has no categorical column.
    """
    features = declare(
        config,
        dataset.categorical,
        crosses=crossed_columns(config, dataset),
        combiner=config.list_combiner,
    )

    def build() -> Any:
        from embedps.layers.embeddings import Embeddings

        from .networks.dcn_v2 import DCNv2

        return DCNv2(
            Embeddings(features),
            label=dataset.label,
            cross_layers=config.cross_layers,
            deep_mlp=config.deep_mlp,
            bottom_mlp=config.bottom_mlp if dataset.numeric else (),
            rank=config.cross_rank,
            parallel=config.structure == "parallel",
            dropout=config.dropout,
            numerics=make_numerics(dataset, config.numeric_bins, config.numeric_waves),
        )

    return click_recommender("dcn_v2", config, dataset, build)
