"""A model that looks up lists of tags, and maybe nothing else: `--model=tests.tagged`."""

import dataclasses

from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.tables import FeatureSpec, TableSpec
from tests.builders import SumModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """What it looks up."""

    only_tags: bool = dataclasses.field(default=False, metadata={"help": "no other feature"})


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes the model of the columns of `tests.builders.write_dataset`."""
    tags = FeatureSpec(
        name="tags", table=TableSpec(name="tags", embedding_dim=3), ragged=True, combiner="sum"
    )
    c1 = FeatureSpec(name="C1", table=TableSpec(name="C1", embedding_dim=4))
    features = (tags,) if config.only_tags else (tags, c1)
    return Recommender(build=lambda: SumModel(features, ()), model="tests.tagged", config=config)
