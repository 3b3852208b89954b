"""MMoE (Ma et al. 2018, "Modeling Task Relationships in Multi-task Learning with MMoE").

Several labels share experts; a gate per label says how much each expert counts.
"""

import dataclasses
from typing import Any

from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.tables.table_options import TableOptions

from ._columns import declare, dropout, label_recommender, widths


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TableOptions):
    """MMoE's options."""

    num_experts: int = option(8, "number of experts", least=1, most=1000)
    expert_mlp: tuple[int, ...] = widths((128, 64), "widths of an expert's layers")
    tower_mlp: tuple[int, ...] = widths((32,), "widths of a label's layers after its gate")
    loss_weights: tuple[float, ...] = option(
        (), "weights of the labels' losses, in the dataset's order (default: 1 each)", above=0
    )
    dropout: float = dropout()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.expert_mlp:
            raise UsageError("expert_mlp must have a layer at least but is empty")


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes an MMoE over a dataset's columns, for all of its labels.

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
            shared_experts=config.num_experts,
            own_experts=0,
            layers=1,
            expert_mlp=config.expert_mlp,
            tower_mlp=config.tower_mlp,
            dropout=config.dropout,
            loss_weights=config.loss_weights,
        )

    return label_recommender("mmoe", config, dataset, build, config.loss_weights)
