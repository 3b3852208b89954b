"""ESMM (Ma et al. 2018, "Entire Space Multi-Task Model").

Two labels of all impressions, the click and the conversion after it. The chance of a conversion
after a click is a factor of the conversion's: it is learned without a choice of clicked rows.
"""

import dataclasses
from typing import Any

from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.tables.table_options import TableOptions

from ._columns import declare, dropout, label_recommender, widths


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TableOptions):
    """ESMM's options."""

    mlp: tuple[int, ...] = widths((128, 64), "widths of the hidden layers, of each of the two")
    dropout: float = dropout()


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes an ESMM over a dataset's columns: the first label is the click, the second follows.

    Raises:
      UsageError: the dataset has no categorical column, or not two binary labels.
    """
    kinds = [label.kind for label in dataset.labels]
    if kinds != ["binary", "binary"]:
        raise UsageError(
            "esmm must have two binary labels, the click and then the conversion, but the dataset "
            f"{dataset.directory} has {', '.join(kinds) or 'none'}"
        )
    features = declare(config, dataset.categorical)

    def build() -> Any:
        from embedps.layers.embeddings import Embeddings

        from .networks.esmm import ESMM

        return ESMM(Embeddings(features), dataset.labels, units=config.mlp, dropout=config.dropout)

    return label_recommender("esmm", config, dataset, build, ())
