"""A model whose rows stay as they are: `--model=tests.frozen`."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Whether its rows learn."""

    learns: bool = dataclasses.field(default=False, metadata={"help": "let the rows learn"})


class Frozen(embedps.ClickModel):
    """Looks up a table, and one that admits ids by their second example."""

    def __init__(self, **layer: Any) -> None:
        super().__init__(label="label")
        tables = [
            embedps.TableSpec(name="C1", embedding_dim=4),
            embedps.TableSpec(name="C2", embedding_dim=4, admission=embedps.MinCount(count=2)),
        ]
        features = [embedps.FeatureSpec(name=t.name, table=t) for t in tables]
        self.embeddings = embedps.Embeddings(features, **layer)
        self.out = tf.keras.layers.Dense(1)

    def logits(self, features: Any, *, training: bool) -> tf.Tensor:
        found = self.embeddings(features)
        return tf.reshape(self.out(tf.concat(list(found.values()), axis=1)), [-1])


def make(config: Config, dataset: Dataset) -> embedps.Recommender:
    """Makes the model of the columns of `tests.builders.write_dataset`."""
    return embedps.Recommender(
        build=lambda: Frozen(trainable=config.learns), model="tests.frozen", config=config
    )
