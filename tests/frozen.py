"""A model whose rows, or those of some tables, stay as they are: `--model=tests.frozen`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Whether its rows learn, and what keeps them from it."""

    learns: bool = dataclasses.field(default=False, metadata={"help": "let the rows learn"})
    by: Literal["layer", "tables"] = dataclasses.field(
        default="layer", metadata={"help": "what is frozen"}
    )


TABLES: dict[str, dict[str, Any]] = {"C1": {"frozen_steps": 10**6}, "C2": {"trainable": False}}
"""Fields of tables that freeze both, each in a way of its own."""


class Frozen(embedps.ClickModel):
    """Looks up a table, and one that admits ids by their second example."""

    def __init__(self, tables: Mapping[str, Mapping[str, Any]] = {}, **layer: Any) -> None:
        super().__init__(label="label")
        fields: dict[str, dict[str, Any]] = {
            "C1": {},
            "C2": {"admission": embedps.MinCount(count=2)},
        }
        specs = [
            embedps.TableSpec(name=name, embedding_dim=4, **own, **tables.get(name, {}))
            for name, own in fields.items()
        ]
        features = [embedps.FeatureSpec(name=t.name, table=t) for t in specs]
        self.embeddings = embedps.Embeddings(features, **layer)
        self.out = tf.keras.layers.Dense(1)

    def logits(self, features: Any, *, training: bool) -> tf.Tensor:
        found = self.embeddings(features)
        return tf.reshape(self.out(tf.concat(list(found.values()), axis=1)), [-1])


def make(config: Config, dataset: Dataset) -> embedps.Recommender:
    """Makes the model of the columns of `tests.builders.write_dataset`."""

    def build() -> Frozen:
        if config.by == "tables" and not config.learns:
            return Frozen(tables=TABLES)
        return Frozen(trainable=config.learns)

    return embedps.Recommender(build=build, model="tests.frozen", config=config)
