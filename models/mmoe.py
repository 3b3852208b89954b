"""MMoE (Ma et al. 2018, "Modeling Task Relationships in Multi-task Learning with MMoE").

Several labels share experts; a gate per label says how much each expert counts.
"""

import dataclasses

from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender

from ._experts import ExpertsConfig, make_experts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ExpertsConfig):
    """MMoE's options."""

    num_experts: int = option(8, "number of experts", least=1, most=1000)


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes an MMoE over a dataset's columns, for all of its labels.

    Raises:
      UsageError: as `make_experts`.
    """
    return make_experts("mmoe", config, dataset, shared_experts=config.num_experts)
