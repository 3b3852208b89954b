"""A model computes columns before its lookups, in training, on a cluster and when it predicts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.serving.export_model import export_model
from tests import commands
from tests.builders import make_trainer, write_dataset


class Crossed(embedps.ClickModel):
    """Looks up a cross of two columns, which the dataset does not have."""

    def __init__(self) -> None:
        super().__init__(label="label")
        self.embeddings = embedps.Embeddings({"C1": 4, "C1xC2": 4})
        self.out = tf.keras.layers.Dense(1)

    def prepare(self, features: Any, *, training: bool) -> dict[str, tf.Tensor]:
        return {"C1xC2": features["C1"] * 1000 + features["C2"]}

    def logits(self, features: Any, *, training: bool) -> tf.Tensor:
        found = self.embeddings(features)
        return tf.reshape(self.out(tf.concat(list(found.values()), axis=1)), [-1])


def make(config: Any, dataset: Any) -> embedps.Recommender:
    return embedps.Recommender(build=Crossed, model=__name__, config=config)


@dataclasses.dataclass(frozen=True)
class Config:
    """No options."""


def test_a_cross_is_looked_up_trained_scored_and_predicted(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", train=(1200,), evaluation=(300,))
    recommender = embedps.Recommender(build=Crossed)
    built = StepModel(recommender, dataset)
    assert set(built.columns.names) == {"label", "C1", "C2"}  # C2 only by the cross
    result = make_trainer(
        dataset, tmp_path / "m", recommender=recommender, epochs=3, eval="inline"
    ).fit()
    rows = pq.read_table(dataset.paths("train")[0])
    crosses = np.unique(rows["C1"].to_numpy() * 1000 + rows["C2"].to_numpy())
    assert result.summary["tables"]["C1xC2"] == len(crosses)
    loaded = embedps.load(tmp_path / "m", recommender=recommender, data=dataset.directory)
    assert set(loaded.columns) == {"C1", "C2"}
    held_out = pq.read_table(dataset.paths("eval")[0])
    scores = loaded.predict(held_out)["score"]
    labels = held_out["label"].to_numpy()
    loss = -np.mean(labels * np.log(scores) + (1 - labels) * np.log(1 - scores))
    assert result.scores[-1].logloss == pytest.approx(loss, abs=1e-5)


class Replaced(embedps.ClickModel):
    """Looks up what it makes of a column under the column's own name."""

    def __init__(self) -> None:
        super().__init__(label="label")
        self.embeddings = embedps.Embeddings({"C1": 4})
        self.out = tf.keras.layers.Dense(1)

    def prepare(self, features: Any, *, training: bool) -> dict[str, tf.Tensor]:
        return {"C1": features["C1"] % 10}

    def logits(self, features: Any, *, training: bool) -> tf.Tensor:
        return tf.reshape(self.out(self.embeddings(features)["C1"]), [-1])


def test_an_export_looks_up_what_replaces_a_column(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", train=(600,), evaluation=(50,))
    recommender = embedps.Recommender(build=Replaced)
    result = make_trainer(
        dataset, tmp_path / "m", recommender=recommender, sparse_learning_rate=1.0
    ).fit()
    assert result.summary["tables"] == {"C1": 10}
    loaded = embedps.load(tmp_path / "m", recommender=recommender, data=dataset.directory)
    directory = CheckpointDirectory(tmp_path / "m")
    done = export_model(recommender, dataset, directory, tmp_path / "out", loaded.number, top_k=1)
    asked = {"C1": np.arange(-7, 50)}
    scores = loaded.predict(asked)["score"]
    assert len(np.unique(scores)) == 10
    exported = tf.saved_model.load(str(done.path)).signatures["serving_default"]
    found = exported(C1=tf.constant(asked["C1"], tf.int64))["score"]
    np.testing.assert_allclose(found, scores, rtol=1e-6)
    np.testing.assert_allclose(scores, loaded.predict({"C1": asked["C1"] % 10})["score"])


@pytest.mark.multiprocess
@pytest.mark.slow
def test_on_a_cluster_too(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", train=(1200,), evaluation=(300,))
    flags = [f"--model={__name__}", "--num-ps=2", "--num-workers=2", "--eval=sidecar"]
    flags += ["--batch-size=64", "--unit-rows=512"]
    commands.finish(commands.train(dataset, tmp_path / "m", *flags))
    assert commands.evaluations_of(tmp_path / "m")[-1]["logloss"] < 1


def test_a_computed_column_that_is_absent_is_named(tmp_path: Path) -> None:
    class Absent(Crossed):
        def prepare(self, features: Any, *, training: bool) -> dict[str, tf.Tensor]:
            return {}

    dataset = write_dataset(tmp_path / "set", train=(100,), evaluation=(10,))
    with pytest.raises(UsageError, match="looks up feature 'C1xC2', but the dataset has no such"):
        StepModel(embedps.Recommender(build=Absent), dataset)
