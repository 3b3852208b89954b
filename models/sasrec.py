"""SASRec (Kang and McAuley 2018, arXiv:1808.09781): self-attention over a user's history.

It predicts at each position of `--history` the next item, and after its end `--item`. The loss is
cross-entropy over the item and others drawn from the catalog, as in gSASRec's analysis (Petrov and
Macdonald 2023), instead of one negative per position, which overestimates scores.

An evaluation ranks the whole corpus for what follows each history of the held-out split.
"""

import dataclasses
from typing import Any

from embedps.config_fields import option
from embedps.data.corpus import Corpus
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.tables import FeatureSpec, Initializer
from embedps.tables.table_options import TableOptions

from ._columns import find_columns, weighed, weight_columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TableOptions):
    """SASRec's options."""

    history: str = option("history", "the column of lists of a user's items, the latest last")
    item: str = option("item", "the column of the item that follows the history")
    seen: str | None = option(None, "a column of lists of items that an evaluation leaves out")
    max_length: int = option(50, "items of a history; the latest count", least=1, most=10**6)
    blocks: int = option(2, "attention blocks", least=1, most=100)
    heads: int = option(1, "attention heads per block", least=1, most=1000)
    num_negatives: int = option(
        256, "items of the catalog that a step draws as negatives", least=1, most=2**20
    )
    dropout: float = option(0.2, "share of units that a training step drops", least=0, below=1)
    at: tuple[int, ...] = option((10, 20, 100), "the k of recall@k and so on", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_dim % self.heads:
            raise UsageError(
                f"heads must divide embedding_dim {self.embedding_dim} but is {self.heads}"
            )
        if not self.at:
            raise UsageError("at must not be empty")


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes a SASRec over a dataset's columns.

    Raises:
      UsageError: the dataset lacks a column of the config, or it is of another kind.
    """
    from .networks import names  # light

    listed = [config.history, *([config.seen] if config.seen else [])]
    find_columns("sasrec", dataset, listed, ragged=True)
    find_columns("sasrec", dataset, [config.item], ragged=False)
    table = config.table(config.item, initializer=Initializer.normal(0.02))
    features = [
        FeatureSpec(
            name=config.history,
            table=table,
            ragged=True,
            combiner="none",
            max_length=config.max_length,
        ),
        FeatureSpec(name=config.item, table=table),
        FeatureSpec(name=names.NEGATIVES, table=table),
    ]

    def build() -> Any:
        from embedps.layers.embeddings import Embeddings

        from .networks.sasrec import SASRec

        return SASRec(
            Embeddings(features),
            Corpus.of(dataset, config.item, lists=listed),
            history=config.history,
            item=config.item,
            dim=config.embedding_dim,
            max_length=config.max_length,
            blocks=config.blocks,
            heads=config.heads,
            num_negatives=config.num_negatives,
            dropout=config.dropout,
            seen=config.seen,
            at=config.at,
        )

    return Recommender(
        build=weighed(build, dataset),
        columns=(*listed, config.item, *weight_columns(dataset)),
        missing_id=dataset.missing_id,
        model="sasrec",
        config=config,
    )
