"""What becomes of a trained model that changes: each line of the guide's table, both columns."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset
from embedps.errors import DimMismatchError
from embedps.training.trainer import Trainer
from tests.builders import dataset_fixture, make_trainer

dataset = dataset_fixture(train=(300,), evaluation=(10,))
Vectors = dict[int, np.ndarray]


def table(name: str, **fields: Any) -> embedps.TableSpec:
    return embedps.TableSpec(name=name, **{"embedding_dim": 4, **fields})


class Sums(embedps.ClickModel):
    """Adds the rows of features up; a dense layer makes the logit, whatever the features are."""

    def __init__(self, features: Mapping[str, embedps.TableSpec]) -> None:
        super().__init__(label="label")
        specs = [embedps.FeatureSpec(name=n, table=t) for n, t in features.items()]
        self.embeddings = embedps.Embeddings(specs)
        self.out = tf.keras.layers.Dense(1)

    def logits(self, features: Any, *, training: bool) -> tf.Tensor:
        found = [tf.reduce_sum(each, 1) for each in self.embeddings(features).values()]
        return self.out(tf.add_n(found)[:, None])[:, 0]


BEFORE = {"C1": table("C1"), "C2": table("C2")}


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of the model, and what comes of it.

    Attributes:
      features: the tables by feature.
      refused: what a resume says; None if it goes on.
      said: what --from says.
      fields: of the run.
      options: of --from.
      name: what table C1 is called now.
      becomes: gives a row of C1 as it is then.
    """

    features: Mapping[str, embedps.TableSpec]
    refused: str | None
    said: str
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    name: str = "C1"
    becomes: Callable[[np.ndarray], np.ndarray] = lambda vector: vector


def both(**fields: Any) -> dict[str, embedps.TableSpec]:
    return {name: table(name, **fields) for name in BEFORE}


def rounded(vector: np.ndarray) -> np.ndarray:
    return tf.cast(tf.cast(vector, tf.bfloat16), tf.float32).numpy()


WITH = "rows taken with optimizer slots: C1"
CHANGES = {
    "a feature is added": Change(
        {**BEFORE, "C3": table("C3")},
        r"tables \['C1', 'C2'\], the model \['C1', 'C2', 'C3'\]",
        "tables that begin fresh: C3",
    ),
    "a feature is removed": Change(
        {"C1": BEFORE["C1"]},
        r"tables \['C1', 'C2'\], the model \['C1'\]",
        "tables left, which this model lacks: C2",
    ),
    "a feature is renamed": Change(
        {"C1": table("item"), "C2": BEFORE["C2"]},
        r"tables \['C1', 'C2'\], the model \['C2', 'item'\]",
        "C1 as item: ",
        options={"from_map": ["C1=item"]},
        name="item",
    ),
    "another column of the same table": Change(
        {"C3": BEFORE["C1"], "C2": BEFORE["C2"]}, r"feature 0 is .*'C3'.*, the checkpoint has", WITH
    ),
    "more floats": Change(
        both(embedding_dim=6),
        "'C1' has embedding_dim 6, the checkpoint has 4",
        "rows taken without optimizer slots: C1",
        options={"from_dims": "pad"},
        becomes=lambda vector: np.pad(vector, [0, 2]),
    ),
    "fewer floats": Change(
        both(embedding_dim=3),
        "'C1' has embedding_dim 3, the checkpoint has 4",
        "rows taken without optimizer slots: C1",
        options={"from_dims": "cut"},
        becomes=lambda vector: vector[:3],
    ),
    "a table's optimizer": Change(
        both(optimizer=embedps.Adagrad()),
        "'C1' has optimizer adagrad, the checkpoint has rowwise_adagrad",
        "rows taken without optimizer slots: C1",
    ),
    "the network's optimizer": Change(
        BEFORE,
        "the network's optimizer is 'sgd', the checkpoint has 'adam'",
        "of its optimizer: 0",
        fields={"dense_optimizer": "sgd"},
    ),
    "row_dtype": Change(both(row_dtype="bfloat16"), None, WITH, becomes=rounded),
    "slot_dtype": Change(both(slot_dtype="bfloat16"), None, WITH),
    "admission": Change(both(admission=embedps.MinCount(count=3)), None, WITH),
    "eviction": Change(both(eviction=(embedps.TimeToLive(steps=99),)), None, WITH),
    "freeze": Change(both(trainable=False), None, WITH),
    "rates": Change(
        both(optimizer=embedps.RowwiseAdagrad(learning_rate=0.1, weight_decay=0.1, clip_norm=1.0)),
        None,
        WITH,
    ),
}


def begin(dataset: Dataset, model_dir: Path, features: Mapping[str, Any], **fields: Any) -> Trainer:
    recommender = embedps.Recommender(build=lambda: Sums(features))
    return make_trainer(dataset, model_dir, recommender=recommender, **fields)


def vectors(trainer: Trainer, name: str) -> Vectors:
    """The rows of the table that has this name, as they are in memory."""
    collection = trainer.collection
    (feature,) = (f.name for g in collection.groups for f in g.features if f.table_name == name)
    ids = np.sort(collection.ids(name))
    found = collection.lookup({feature: tf.constant(ids)}, insert=False, partial=True)
    return dict(zip(ids.tolist(), collection.combine(found)[feature].numpy(), strict=True))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> tuple[Path, Vectors]:
    model_dir = tmp_path_factory.mktemp("changes") / "m"
    trainer = begin(dataset, model_dir, BEFORE)
    trainer.fit()
    found = vectors(trainer, "C1")
    assert found
    return model_dir, found


def check(trainer: Trainer, change: Change, before: Vectors) -> None:
    found = vectors(trainer, change.name)
    assert found.keys() == before.keys()
    for each, vector in before.items():
        np.testing.assert_array_equal(found[each], change.becomes(vector))
    trainer.close()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_on_resume(
    dataset: Dataset, source: tuple[Path, Vectors], tmp_path: Path, change: Change
) -> None:
    shutil.copytree(source[0], tmp_path / "m")
    fields = {"epochs": 2, **change.fields}
    if change.refused is None:
        check(begin(dataset, tmp_path / "m", change.features, **fields), change, source[1])
        return
    with pytest.raises(DimMismatchError, match=f"{change.refused}.*: .* with --from this one"):
        begin(dataset, tmp_path / "m", change.features, **fields)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_with_from(
    dataset: Dataset, source: tuple[Path, Vectors], tmp_path: Path, change: Change
) -> None:
    fields = {"from": str(source[0]), **change.options, **change.fields}
    trainer = begin(dataset, tmp_path / "m", change.features, **fields)
    assert change.said in "\n".join(trainer._setup.changes)
    check(trainer, change, source[1])
