"""A model of tables whose rows begin with what a function computes."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset
from embedps.tables import Initializer, MinCount, SizeLimit
from tests.tables.some_vectors import DIM

MODULE = "tests.tables.some_vectors"


def computed(name: str = "of_ids") -> Initializer:
    return Initializer.computed(f"{MODULE}:{name}")


class Sums(embedps.ClickModel):
    """C1's rows of the function, of which some are admitted late and go early; C3's as declared."""

    def __init__(self, name: str = "of_ids") -> None:
        super().__init__(label="label")
        slow = embedps.SGD(learning_rate=1e-30)
        of_function = embedps.TableSpec(
            name="C1", embedding_dim=DIM, optimizer=slow, initializer=computed(name),
            admission=MinCount(count=3), eviction=(SizeLimit(max_rows=20),),
        )  # fmt: skip
        other = embedps.TableSpec(
            name="C3", embedding_dim=DIM, optimizer=slow, initializer=computed()
        )
        self.embeddings = embedps.Embeddings(
            [
                embedps.FeatureSpec(name="C1", table=of_function),
                embedps.FeatureSpec(name="C3", table=other),
            ]
        )
        self.out = tf.keras.layers.Dense(1)

    def logits(self, features: Any, *, training: bool) -> Any:
        found = self.embeddings(features)
        return self.out(1e-4 * (found["C1"] + found["C3"]))[:, 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Has nothing to choose."""


def make(config: Config, dataset: Dataset) -> embedps.Recommender:
    return embedps.Recommender(build=Sums)
