"""DLRM over every shape of dataset: each schema that ships, and columns of one kind alone."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps.data.dataset import RAGGED_TYPE, Dataset
from embedps.data.dataset_metadata import CategoricalFeature
from embedps.dtypes import COMPUTE_DTYPES
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.layers.embeddings import Embeddings
from embedps.models import dlrm
from embedps.models.networks.dlrm import DLRM
from embedps.tables import FeatureSpec, TableSpec
from tests import shipped
from tests.builders import TINY_DLRM, latest, make_trainer, write_dataset
from tests.commands import run_program

EPOCHS = 3
DTYPES = pytest.mark.parametrize("compute_dtype", COMPUTE_DTYPES)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    root = tmp_path_factory.mktemp("shipped")
    return {name: shipped.write_dataset(name, root / name) for name in shipped.NAMES}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    dataset = write_dataset(tmp_path_factory.mktemp("planted") / "set", train=(1500,))
    return dataclasses.replace(dataset, schema={**dataset.schema, "tags": RAGGED_TYPE})


def check(result: dict[str, Any], rows: int, epochs: int = EPOCHS) -> None:
    """It trained on every row, and learned."""
    assert result["examples"] == epochs * rows
    assert result["finished"]
    assert 0 < result["training"]["logloss"] < 0.75
    assert result["training"]["auc"] > 0.55


@pytest.mark.parametrize(
    ("name", "compute_dtype"),
    list(zip(shipped.NAMES, itertools.cycle(COMPUTE_DTYPES), strict=False)),
)
def test_shipped_schema_is_trained_on_and_scored_in_one_process(
    tmp_path: Path, datasets: dict[str, Dataset], name: str, compute_dtype: str
) -> None:
    config = dataclasses.replace(TINY_DLRM, compute_dtype=compute_dtype)
    recommender = dlrm.make(config, datasets[name])
    options: dict[str, Any] = {"epochs": EPOCHS, "eval": "inline", **shipped.LEARN}
    result = (
        make_trainer(datasets[name], tmp_path, recommender=recommender, **options).fit().summary
    )
    check(result, shipped.ROWS["train"])
    assert result["evaluation"]["auc"] > 0.55


@pytest.mark.multiprocess
@pytest.mark.slow
def test_shipped_schemas_are_trained_on_by_a_local_cluster(
    tmp_path: Path, datasets: dict[str, Dataset]
) -> None:
    """One cluster for all: most of the time goes into its start."""
    shown = run_program(
        *("-m", "tests.shipped_program", tmp_path, str(EPOCHS)),
        given="".join(f"{dataset.directory}\n" for dataset in datasets.values()),
        timeout_secs=300,
    )
    found = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    assert [(f["schema"], f["compute_dtype"]) for f in found] == [
        (name, dtype) for name in shipped.NAMES for dtype in COMPUTE_DTYPES
    ]
    for each in found:
        check(each["result"], shipped.ROWS["train"])
        assert each["result"]["worker_restarts"] == 0


VARIABLES = [
    ("mlp/dense/kernel:0", [2, 8]),
    ("mlp/dense/bias:0", [8]),
    ("mlp/dense_1/kernel:0", [8, 4]),
    ("mlp/dense_1/bias:0", [4]),
    ("mlp_1/dense_2/kernel:0", [4 + 6, 8]),
    ("mlp_1/dense_2/bias:0", [8]),
    ("mlp_1/dense_3/kernel:0", [8, 1]),
    ("mlp_1/dense_3/bias:0", [1]),
]
TAGS = CategoricalFeature(name="tags", cardinality=30, ragged=True)


@pytest.mark.parametrize(
    ("columns", "width", "compute_dtype"),
    [
        (("C1",), 4, "float32"),
        (("tags",), 4, "bfloat16"),
        (("C1", "C2", "C3"), 3 * 4 + 3, "bfloat16"),
        (("C1", "tags"), 2 * 4 + 1, "float32"),
    ],
)
def test_without_numerics_the_embeddings_take_the_bottom_mlps_place(
    tmp_path: Path, planted: Dataset, columns: tuple[str, ...], width: int, compute_dtype: str
) -> None:
    known = (*planted.categorical, TAGS)
    dataset = dataclasses.replace(
        planted, numeric=(), categorical=tuple(f for f in known if f.name in columns)
    )
    config = dataclasses.replace(TINY_DLRM, compute_dtype=compute_dtype)
    recommender = dlrm.make(config, dataset)
    variables = StepModel(recommender, dataset).variables
    assert [v.shape.as_list() for v in variables] == [[width, 8], [8], [8, 1], [1]]
    trainer = make_trainer(dataset, tmp_path, recommender=recommender, epochs=8)
    check(trainer.fit().summary, 1500, epochs=8)
    assert latest(tmp_path).final
    resumed = make_trainer(dataset, tmp_path, recommender=recommender, epochs=9)
    assert resumed.ledger.num_done == 8 * resumed.ledger.units_per_epoch
    resumed.close()


@DTYPES
def test_with_numerics_variables_are_those_of_checkpoints_before(
    planted: Dataset, compute_dtype: str
) -> None:
    """By their order and shapes a checkpoint's are restored; by their names they are told apart."""
    tf.keras.backend.clear_session()
    config = dataclasses.replace(TINY_DLRM, compute_dtype=compute_dtype)
    variables = StepModel(dlrm.make(config, planted), planted).variables
    assert [(v.name, v.shape.as_list()) for v in variables] == VARIABLES


def test_logits_without_numerics_are_of_embeddings_and_their_dot_product() -> None:
    features = [FeatureSpec(name=n, table=TableSpec(name=n, embedding_dim=2)) for n in ("a", "b")]
    model = DLRM(Embeddings(features), label="label", embedding_dim=2, top_mlp=())
    a, b = [[1.0, 2.0], [0.0, 1.0]], [[3.0, -1.0], [5.0, 7.0]]
    batch = {"a": tf.zeros([2], tf.int64), "b": tf.zeros([2], tf.int64)}

    def logits_of_batch() -> np.ndarray:
        with model.embeddings.providing({"a": tf.constant(a), "b": tf.constant(b)}):
            return model.logits(batch, training=False).numpy()

    logits_of_batch()
    kernel, bias = model.layers[-1].trainable_variables
    kernel.assign([[1.0], [10.0], [100.0], [1000.0], [0.5]])
    bias.assign([0.25])
    logits = logits_of_batch()
    assert logits.tolist() == [
        1 + 20 + 300 - 1000 + 0.5 * (3 - 2) + 0.25,
        0 + 10 + 500 + 7000 + 0.5 * 7 + 0.25,
    ]


@pytest.mark.parametrize("numerics", [0, 2])
def test_dataset_without_a_categorical_column_is_refused(planted: Dataset, numerics: int) -> None:
    dataset = dataclasses.replace(planted, numeric=planted.numeric[:numerics], categorical=())
    with pytest.raises(UsageError, match=rf"none beside {numerics} numeric ones: declare") as error:
        dlrm.make(TINY_DLRM, dataset)
    assert "\n" not in str(error.value)


def test_numbers_can_be_encoded_by_bins_and_waves(planted: Dataset) -> None:
    """The bottom MLP takes what `Numerics` gives, which test_click_models.py checks."""
    config = dataclasses.replace(TINY_DLRM, numeric_bins=3, numeric_waves=2)
    built = StepModel(dlrm.make(config, planted), planted)
    width = len(planted.numeric) * (3 + 2 * 2 + 1)
    shapes = [tuple(v.shape) for v in built.model._bottom.trainable_variables]
    assert shapes[0][0] == width
    with pytest.raises(UsageError, match="numeric_waves 2 needs numeric_bins"):
        StepModel(dlrm.make(dataclasses.replace(config, numeric_bins=0), planted), planted)
