"""What MMoE and PLE share: options, and the model of a dataset's labels."""

import dataclasses
from typing import Any

from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.tables.table_options import TableOptions

from ._columns import (
    declare,
    dropout,
    label_recommender,
    make_numerics,
    numeric_bins,
    numeric_waves,
    widths,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertsConfig(TableOptions):
    """Options of a model with experts."""

    expert_mlp: tuple[int, ...] = widths((128, 64), "widths of an expert's layers")
    tower_mlp: tuple[int, ...] = widths((32,), "widths of a label's layers after its gate")
    loss_weights: tuple[float, ...] = option(
        (), "weights of the labels' losses, in the dataset's order (default: 1 each)", above=0
    )
    dropout: float = dropout()
    numeric_bins: int = numeric_bins()
    numeric_waves: int = numeric_waves()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.expert_mlp:
            raise UsageError("expert_mlp must have a layer at least but is empty")


def make_experts(
    name: str,
    config: ExpertsConfig,
    dataset: Dataset,
    *,
    shared_experts: int,
    own_experts: int = 0,
    layers: int = 1,
) -> Recommender:
    """Makes a model with experts over a dataset's columns, for all of its labels.

    Raises:
      UsageError: the dataset has no categorical column, or there are not as many loss weights as
        labels.
    """
    features = declare(config, dataset.categorical)

    def build() -> Any:
        from embedps.layers.embeddings import Embeddings

        from .networks.experts import MixtureOfExperts

        return MixtureOfExperts(
            Embeddings(features),
            dataset.labels,
            shared_experts=shared_experts,
            own_experts=own_experts,
            layers=layers,
            expert_mlp=config.expert_mlp,
            tower_mlp=config.tower_mlp,
            dropout=config.dropout,
            loss_weights=config.loss_weights,
            numerics=make_numerics(dataset, config.numeric_bins, config.numeric_waves),
        )

    return label_recommender(name, config, dataset, build, config.loss_weights)
