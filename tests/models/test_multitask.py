"""MMoE and PLE: equal to NumPy, and trained for labels of several kinds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.data.unit_reader import NUMERICS
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.evaluation.evaluator import Evaluator
from embedps.models import mmoe, ple
from tests import every_column
from tests.builders import dataset_fixture, make_trainer, read_split, write_dataset

TINY: dict[ModuleType, dict[str, Any]] = {
    mmoe: {"num_experts": 3},
    ple: {"shared_experts": 2, "own_experts": 1, "extraction_layers": 2},
}
SHARED: dict[str, Any] = {"embedding_dim": 4, "expert_mlp": (8, 6), "tower_mlp": (5,)}
MODULES = pytest.mark.parametrize("module", TINY, ids=lambda m: m.__name__)


def quick(module: ModuleType) -> Any:
    """Parametrizes by all modules, of which the others are slow."""
    rest = [pytest.param(m, marks=pytest.mark.slow) for m in TINY if m is not module]
    return pytest.mark.parametrize("module", [module, *rest], ids=lambda m: m.__name__)


dataset = dataset_fixture(every_column.write_dataset)


def make(module: ModuleType, dataset: Dataset, **options: Any) -> Any:
    return module.make(module.Config(**SHARED, **TINY[module], **options), dataset)


def dense(layers: Any, x: np.ndarray, *, last_relu: bool) -> np.ndarray:
    weights = [v.numpy() for v in layers.trainable_variables]
    for i in range(0, len(weights), 2):
        x = x @ weights[i] + weights[i + 1]
        x = np.maximum(x, 0) if last_relu or i + 2 < len(weights) else x
    return x


def gated(logits: np.ndarray, experts: list[np.ndarray]) -> np.ndarray:
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return np.einsum("be,ebd->bd", shares, np.stack(experts))


def plain_answers(model: Any, x: np.ndarray) -> list[np.ndarray]:
    tasks = len(model.labels)
    per_task, common = [x] * tasks, x
    for layer in model.extractions:
        shared = [dense(e, common, last_relu=True) for e in layer._shared]
        own = [[dense(e, per_task[t], last_relu=True) for e in layer._own[t]] for t in range(tasks)]
        found = []
        for t in range(tasks):
            gate = dense(layer._gates[t], per_task[t], last_relu=False)
            found.append(gated(gate, [*own[t], *shared]))
        if layer._shared_gate is not None:
            every = [e for each in own for e in each]
            gate = dense(layer._shared_gate, common, last_relu=False)
            common = gated(gate, [*every, *shared])
        per_task = found
    return [
        dense(head, dense(tower, x, last_relu=True), last_relu=False)
        for x, tower, head in zip(per_task, model.towers, model.heads, strict=True)
    ]


@MODULES
def test_answers_and_loss_equal_those_of_numpy(dataset: Dataset, module: ModuleType) -> None:
    weights = (1.0, 2.0, 0.5)[: len(dataset.labels)]
    built = StepModel(make(module, dataset, loss_weights=weights), dataset)
    rng = np.random.default_rng(3)
    for variable in built.model.trainable_variables:
        variable.assign(rng.normal(0, 0.5, variable.shape))
    numbers = rng.normal(size=(2, len(dataset.numeric))).astype(np.float32)
    found = {f.name: rng.normal(size=(2, 4)).astype(np.float32) for f in built.features}
    batch = built.columns.sample() | {NUMERICS: tf.constant(numbers)}
    given = {name: tf.constant(rows) for name, rows in found.items()}
    with built.embeddings.providing(given):
        answers = built.model.answers(batch, training=False)
    there = np.zeros_like(numbers)  # no number is missing
    expected = plain_answers(built.model, np.concatenate([numbers, there, *found.values()], axis=1))
    for ours, theirs in zip(answers, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)

    total = 0.0
    for label, answer, weight in zip(dataset.labels, expected, weights, strict=True):
        wanted = batch[label.name].numpy()
        if label.kind == "binary":
            p = 1 / (1 + np.exp(-answer[:, 0]))
            total -= weight * np.mean(wanted * np.log(p) + (1 - wanted) * np.log(1 - p))
        elif label.kind == "classes":
            shares = np.exp(answer) / np.exp(answer).sum(1, keepdims=True)
            total -= weight * np.mean(np.log(shares[np.arange(2), wanted]))
        else:
            total += weight * np.mean((answer[:, 0] - wanted) ** 2)
    with built.embeddings.providing(given), built.metrics.collecting():
        loss = built.model.compute_loss(dict(batch), training=False)
    np.testing.assert_allclose(loss, total, rtol=1e-4)


@quick(ple)
def test_trains_labels_of_every_kind_and_scores_each(
    tmp_path: Path, dataset: Dataset, module: ModuleType
) -> None:
    recommender = make(module, dataset)
    result = make_trainer(
        dataset,
        tmp_path,
        recommender=recommender,
        epochs=4,
        eval="inline",
        sparse_learning_rate=0.2,
        dense_learning_rate=0.01,
    ).fit()
    scores = {name: value or 0.0 for name, value in result.scores[-1].values.items()}
    for label in dataset.labels:
        kind = {"binary": "auc", "classes": "accuracy", "number": "rmse"}[label.kind]
        assert f"{label.name}_{kind}" in scores
        if kind == "auc":
            assert scores[f"{label.name}_auc"] > 0.55
    assert scores["loss"] < (result.scores[0].get("loss") or 0)
    # Of each example, beside its labels.
    directory = CheckpointDirectory(tmp_path)
    evaluator = Evaluator(recommender, dataset, directory)
    evaluator.apply(directory.read(directory.numbers()[-1]))
    evaluator.write_scores(tmp_path / "scores.parquet", lambda done: None)
    written = pq.read_table(tmp_path / "scores.parquet")
    loaded = embedps.load(tmp_path, recommender=recommender, data=dataset.directory)
    for name, value in loaded.predict(read_split(dataset)).items():
        column = written[f"predicted/{name}"].to_pylist()
        np.testing.assert_array_equal(np.array(column, np.float32), value)
        assert name in written.column_names


@quick(mmoe)
def test_one_label_is_enough_and_dropout_resumes(tmp_path: Path, module: ModuleType) -> None:
    dataset = write_dataset(tmp_path / "set", train=(600,))
    recommender = make(module, dataset, dropout=0.2)
    make_trainer(dataset, tmp_path / "m", recommender=recommender).fit()
    resumed = make_trainer(dataset, tmp_path / "m", recommender=recommender, epochs=2)
    assert resumed.ledger.num_done == resumed.ledger.units_per_epoch
    resumed.close()


@MODULES
def test_wrong_options_are_refused(dataset: Dataset, module: ModuleType) -> None:
    with pytest.raises(UsageError, match="a weight for each label"):
        make(module, dataset, loss_weights=(1.0,) * (len(dataset.labels) + 1))
    with pytest.raises(UsageError, match="expert_mlp must have a layer"):
        module.Config(expert_mlp=())
    with pytest.raises(UsageError, match="must have a categorical column"):
        make(module, dataclasses.replace(dataset, categorical=()))
