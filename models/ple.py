"""PLE (Tang et al. 2020, "Progressive Layered Extraction"): MMoE with experts of each label's own.

What labels share and what is a label's own is told apart, layer by layer.
"""

import dataclasses

from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender

from ._experts import ExpertsConfig, make_experts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ExpertsConfig):
    """PLE's options."""

    shared_experts: int = option(2, "experts of all labels, per layer", least=1, most=1000)
    own_experts: int = option(2, "experts of each label, per layer", least=1, most=1000)
    extraction_layers: int = option(2, "layers of experts and gates", least=1, most=100)


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes a PLE over a dataset's columns, for all of its labels.

    Raises:
      UsageError: as `make_experts`.
    """
    return make_experts(
        "ple",
        config,
        dataset,
        shared_experts=config.shared_experts,
        own_experts=config.own_experts,
        layers=config.extraction_layers,
    )
