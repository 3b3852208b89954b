"""Two-tower retrieval: a tower for queries, one for items, scored by the dot product.

The loss is a softmax over the batch's items, corrected for their popularity (Yi et al. 2019), with
further negatives from the catalog (Yang et al. 2020); or SimpleX' CCL (Mao et al. 2021,
arXiv:2109.12613); or BPR (Rendle et al. 2009). Without `--tower-mlp` it is matrix factorization.

An evaluation ranks the whole corpus for each row of the held-out split. The rows of both splits
have the same columns; `embedps.pipelines.interactions` makes such a dataset.
"""

import dataclasses
from typing import Any

from embedps.config_fields import option
from embedps.data.corpus import Corpus
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.tables import FeatureSpec, Initializer, TableSpec
from embedps.tables.table_options import TableOptions

from ._columns import dropout, find_columns, weighed, weight_columns, widths


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TableOptions):
    """Two towers' options."""

    query: tuple[str, ...] = option(("user",), "columns of the query tower")
    item: tuple[str, ...] = option(
        ("item",), "columns of the item tower; the first is the item's id"
    )
    history: str | None = option(
        None, "a column of lists of items, whose mean is mixed into the query (SimpleX)"
    )
    held_out: str | None = option(
        None, "the column of lists of items to find in an evaluation (default: the item itself)"
    )
    seen: str | None = option(None, "a column of lists of items that an evaluation leaves out")
    hard_negatives: str | None = option(None, "a column of lists of items, more negatives of a row")
    tower_mlp: tuple[int, ...] = widths(
        (), "widths of each tower's layers; a last layer of --embedding-dim is added"
    )
    loss: str = option("softmax", "softmax, ccl or bpr", choices=("softmax", "ccl", "bpr"))
    log_q: bool = option(True, "correct the softmax for the items' popularity")
    normalize: bool = option(False, "score by the cosine")
    temperature: float = option(1.0, "divides the scores in the softmax", above=0)
    num_negatives: int = option(
        0, "items of the catalog that a step draws as negatives", least=0, most=2**20
    )
    margin: float = option(0.8, "cosine from which a negative costs (ccl)", least=-1, most=1)
    negative_weight: float = option(150.0, "of the negatives' mean (ccl)", above=0)
    history_weight: float = option(0.5, "share of the history in the query", least=0, most=1)
    history_table: str = option(
        "own",
        "own: the history's items have rows of their own; item: it reads the items' rows, so that "
        "items of few users learn from those beside them, and its map begins as the identity",
        choices=("own", "item"),
    )
    row_stddev: float | None = option(
        None,
        "standard deviation of new rows' values (default: they are uniform in +-1/sqrt(dim)); try "
        "0.005 where items have few users",
        least=0,
        most=1000,
    )
    dropout: float = dropout()
    at: tuple[int, ...] = option((10, 20, 100), "the k of recall@k and so on", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("query", "item", "at"):
            if not getattr(self, name):
                raise UsageError(f"{name} must not be empty")
        for name in ("query", "item"):
            columns = getattr(self, name)
            if len({*columns}) < len(columns):
                raise UsageError(f"{name} must name each column once but is {', '.join(columns)}")
        if self.item[0] in self.query:
            raise UsageError(
                f"query must not have {self.item[0]}, the item's id, which tells the answer"
            )
        if self.seen is not None and self.seen == self.held_out:
            raise UsageError(f"seen must be another column than held_out, but both are {self.seen}")
        if self.loss != "softmax" and not self.num_negatives:
            raise UsageError(f"loss {self.loss} needs num_negatives above 0")
        if self.num_negatives and len(self.item) > 1:
            raise UsageError(
                "num_negatives needs items without further columns, as drawn items have none, but "
                f"item has {', '.join(self.item)}"
            )

    def rows_of(self, name: str) -> TableSpec:
        """Declares a table of vectors."""
        first = None if self.row_stddev is None else Initializer.normal(self.row_stddev)
        return self.table(name, initializer=first)


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes two towers over a dataset's columns.

    Raises:
      UsageError: the dataset lacks a column, or a column is of another kind.
    """
    from .networks import names  # light

    singles, lists = find_columns("two_tower", dataset, (*config.query, *config.item))
    of_items = [config.history, config.held_out, config.seen, config.hard_negatives]
    item_lists = [name for name in of_items if name is not None]
    find_columns("two_tower", dataset, item_lists, ragged=True)
    if config.item[0] in lists:
        raise UsageError(f"the item's id must be one id per row, but {config.item[0]!r} has lists")
    item = config.item[0]
    corrects = config.log_q and config.loss == "softmax"
    shares = config.history is not None and config.history_table == "item"
    # Hard negatives and histories may update the items' rows too: then a table of counts tells how
    # often items are in a batch or drawn.
    has_counts = corrects and (config.hard_negatives is not None or shares)

    features = [
        FeatureSpec(
            name=name,
            table=config.rows_of(name),
            ragged=name in lists,
            rate_as=names.RATE if name == item and corrects and not has_counts else None,
        )
        for name in (*singles, *lists)
    ]
    if config.history is not None:
        # In the authors' code the history has a table of its own.
        table = config.rows_of(item if shares else config.history)
        features.append(FeatureSpec(name=config.history, table=table, ragged=True))
    if config.hard_negatives is not None:
        features.append(
            FeatureSpec(
                name=config.hard_negatives, table=config.rows_of(item), ragged=True, combiner="none"
            )
        )
    if config.num_negatives:
        rate = names.NEGATIVES_RATE if corrects and not has_counts else None
        features.append(FeatureSpec(name=names.NEGATIVES, table=config.rows_of(item), rate_as=rate))

    if has_counts:
        counts = config.counts("_item_counts")
        rates = {names.COUNTED: names.RATE}
        if config.num_negatives:
            rates[names.NEGATIVES_COUNTED] = names.NEGATIVES_RATE
        features += [FeatureSpec(name=n, table=counts, rate_as=rate) for n, rate in rates.items()]

    def build() -> Any:
        from embedps.layers.embeddings import Embeddings

        from .networks.two_tower import TwoTower

        listed = [n for n in (config.held_out, config.seen) if n] if len(config.item) == 1 else []
        corpus = Corpus.of(dataset, item, features=config.item[1:], lists=listed)
        return TwoTower(Embeddings(features), corpus, config)

    return Recommender(
        build=weighed(build, dataset),
        columns=(
            *dict.fromkeys((*config.query, *config.item, *item_lists)),
            *weight_columns(dataset),
        ),
        missing_id=dataset.missing_id,
        model="two_tower",
        config=config,
    )
