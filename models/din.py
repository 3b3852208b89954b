"""DIN (Zhou et al. 2018, arXiv:1706.06978): attention over a user's history, given the item.

`--history clicked_items --target item` names a column of lists and the column of the same kind of
ids for the item that may be clicked; both are looked up in the item's table. Several of each may be
given, such as items and their categories. Lists of a row must be equally long. The weights are not
normalized, as in the paper; the layers that make them have sigmoids, as in the authors' code.
"""

import dataclasses
from typing import Any

from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.tables import FeatureSpec
from embedps.tables.table_options import TableOptions

from ._columns import (
    check_categorical,
    click_recommender,
    declare,
    dropout,
    find_columns,
    widths,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TableOptions):
    """DIN's options."""

    history: tuple[str, ...] = option(("history",), "columns of lists of ids, the latest last")
    target: tuple[str, ...] = option(("item",), "the item's column for each of --history")
    max_length: int = option(50, "items of a history; the latest count", least=1, most=10**6)
    attention_mlp: tuple[int, ...] = widths(
        (80, 40), "widths of the layers that weigh an item of the history"
    )
    deep_mlp: tuple[int, ...] = widths(
        (200, 80), "widths of the deep layers; a last layer of one logit is added"
    )
    dropout: float = dropout()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.history) != len(self.target) or not self.history:
            raise UsageError(
                f"target must name a column for each of history but they are "
                f"{', '.join(self.target) or 'none'} and {', '.join(self.history) or 'none'}"
            )
        if len({*self.history}) < len(self.history):
            raise UsageError(f"history must name each column once but is {', '.join(self.history)}")


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes a DIN over a dataset's columns.

    Raises:
      UsageError: the dataset lacks a column of the config, or it is of another kind.
    """
    check_categorical("din", dataset)
    find_columns("din", dataset, config.history, ragged=True)
    find_columns("din", dataset, config.target, ragged=False)
    table_of = dict(zip(config.history, config.target, strict=True))
    others = [column for column in dataset.categorical if column.name not in table_of]
    features = list(declare(config, others))
    tables = {feature.name: feature.table for feature in features}
    features += [
        FeatureSpec(
            name=history,
            table=tables[target],
            ragged=True,
            combiner="none",
            max_length=config.max_length,
        )
        for history, target in table_of.items()
    ]

    def build() -> Any:
        from embedps.layers.embeddings import Embeddings

        from .networks.din import DIN

        return DIN(
            Embeddings(features),
            label=dataset.label,
            pairs=list(table_of.items()),
            attention_mlp=config.attention_mlp,
            deep_mlp=config.deep_mlp,
            dropout=config.dropout,
        )

    return click_recommender("din", config, dataset, build)
