"""A run or an evaluator refuses a checkpoint of another model, and names the difference."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_dense, write_dense
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.format.manifest_json import to_json
from embedps.engine.model_signature import check_signature, signature_of
from embedps.engine.recommender import Recommender
from embedps.engine.step_model import StepModel
from embedps.errors import DimMismatchError
from embedps.evaluation.evaluator import Evaluator
from embedps.tables import FeatureSpec
from embedps.training.trainer import Trainer
from tests.builders import (
    FEATURES,
    MIXED,
    SumModel,
    dataset_fixture,
    latest,
    make_dlrm,
    make_trainer,
)

KINDS = ("sgd", "adagrad", "adam")


dataset = dataset_fixture(train=(600,), evaluation=(100,), whole=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, dataset) -> Path:
    """A model directory by the name of each optimizer, and one of the model of two dims."""
    folder = tmp_path_factory.mktemp("trained")
    for kind in KINDS:
        make_trainer(dataset, folder / kind, dense_optimizer=kind).fit()
    make_trainer(dataset, folder / "mixed", recommender=MIXED).fit()
    return folder


def rewrite(model_dir: Path, **changes) -> Manifest:
    """Changes the newest manifest's fields."""
    manifest = dataclasses.replace(latest(model_dir), **changes)
    path = CheckpointDirectory(model_dir).manifest_path(manifest.number)
    path.write_bytes(to_json(manifest))
    return manifest


@pytest.mark.parametrize(
    ("stored", "given", "named"),
    [
        *((*pair, False) for pair in zip(KINDS, KINDS[1:] + KINDS[:1], strict=True)),
        ("sgd", "adam", True),
    ],
)
def test_another_optimizer_is_refused(tmp_path, dataset, trained, stored, given, named):
    shutil.copytree(trained / stored, tmp_path / "m")
    if not named:  # as manifests were before
        rewrite(tmp_path / "m", model={})
    with pytest.raises(DimMismatchError) as refused:
        make_trainer(dataset, tmp_path / "m", dense_optimizer=given)
    assert str(refused.value) == (
        f"the network's optimizer is '{given}', the checkpoint has '{stored}': resume with what it "
        f"was trained with (--dense-optimizer {stored}), or start a new model directory with "
        "--from this one"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_same_optimizer_resumes_and_the_evaluator_takes_any(tmp_path, dataset, trained, kind):
    shutil.copytree(trained / kind, tmp_path / "m")
    rewrite(tmp_path / "m", model={})
    resumed = make_trainer(dataset, tmp_path / "m", dense_optimizer=kind, epochs=2)
    assert resumed.fit().summary["finished"]
    assert latest(tmp_path / "m").model["dense_optimizer"] == kind
    evaluator = Evaluator(make_dlrm(dataset), dataset, CheckpointDirectory(tmp_path / "m"))
    found = evaluator.evaluate_latest(newer_than=-1)
    assert found is not None
    assert np.isfinite(found[1].metrics.logloss)


def of_features(*features: FeatureSpec) -> Recommender:
    return Recommender(build=lambda: SumModel(features))


F = FEATURES
CHANGES = {
    "label": (
        Recommender(build=lambda: SumModel(label="I2")),
        "the label's column is '', the checkpoint has 'label'",
    ),
    "missing_id": (
        dataclasses.replace(MIXED, missing_id=-5),
        "the id of what is missing is -5, the checkpoint has -1",
    ),
    "fewer numerics": (
        dataclasses.replace(MIXED, columns=("label", "I1", *(f.name for f in F))),
        "numeric column 1 is none, the checkpoint has 'I2'",
    ),
    "order of features": (of_features(F[1], F[0], *F[2:]), "feature 0 is .*'C2'.* has .*'C1'"),
    "table of a feature": (
        of_features(F[0], FeatureSpec(name="C2", table="row"), *F[2:]),
        "feature 1 is .*'row'.* has .*'small'",
    ),
    "combiner": (
        of_features(*F[:3], dataclasses.replace(F[3], combiner="sum"), F[4]),
        "feature 3 is .*'sum'.* has .*'mean'",
    ),
}


def check_refused(model_dir: Path, model: StepModel, message: str) -> None:
    with pytest.raises(DimMismatchError, match=message):
        check_signature(latest(model_dir), signature_of(model))


@pytest.mark.parametrize("name", CHANGES)
def test_model_of_other_columns_is_refused(dataset, trained, name):
    recommender, message = CHANGES[name]
    check_refused(trained / "mixed", StepModel(recommender, dataset), message)


def test_trainer_and_evaluator_refuse_a_model_of_other_columns(tmp_path, dataset, trained):
    recommender, message = CHANGES["label"]
    shutil.copytree(trained / "mixed", tmp_path / "m")
    with pytest.raises(DimMismatchError, match=message):
        make_trainer(dataset, tmp_path / "m", recommender=recommender)
    evaluator = Evaluator(recommender, dataset, CheckpointDirectory(tmp_path / "m"))
    with pytest.raises(DimMismatchError, match=message):
        evaluator.evaluate_latest(newer_than=-1)


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("numeric", reversed, "numeric column 0 is 'I2'"),
        ("categorical", reversed, "feature 0 is .*'C3'.* has .*'C1'"),
        ("missing_id", lambda _: -9, "is -9, the checkpoint has -1"),
    ],
)
def test_dataset_that_is_described_otherwise_is_refused(dataset, trained, field, change, message):
    changed = change(getattr(dataset, field))
    other = dataclasses.replace(
        dataset, **{field: changed if isinstance(changed, int) else tuple(changed)}
    )
    check_refused(trained / "adam", StepModel(make_dlrm(other), other), message)


def test_dense_file_of_no_known_optimizer_must_have_as_many_variables(tmp_path, dataset, trained):
    shutil.copytree(trained / "adagrad", tmp_path / "m")
    directory = CheckpointDirectory(tmp_path / "m")
    dense = latest(tmp_path / "m").dense
    assert dense is not None
    arrays = read_dense(directory.file(dense))
    arrays["more"] = np.zeros(3, np.float32)
    entry = write_dense(directory.file(dense), arrays, root=directory.path)
    rewrite(tmp_path / "m", model={}, dense=entry)
    with pytest.raises(DimMismatchError, match=r"has 18 dense variables, .* optimizer have 17:"):
        make_trainer(dataset, tmp_path / "m", dense_optimizer="adagrad")


def test_variable_of_another_type_is_refused(tmp_path, dataset, trained):
    shutil.copytree(trained / "sgd", tmp_path / "m")
    directory = CheckpointDirectory(tmp_path / "m")
    dense = latest(tmp_path / "m").dense
    assert dense is not None
    arrays = {k: v.astype(np.float64) for k, v in read_dense(directory.file(dense)).items()}
    rewrite(tmp_path / "m", dense=write_dense(directory.file(dense), arrays, root=directory.path))
    with pytest.raises(DimMismatchError, match=r"of float32, .* of float64"):
        make_trainer(dataset, tmp_path / "m", dense_optimizer="sgd")


def test_checkpoint_that_says_nothing_of_its_columns_is_taken(tmp_path, dataset, trained):
    shutil.copytree(trained / "mixed", tmp_path / "m")
    rewrite(tmp_path / "m", model={})
    other = dataclasses.replace(MIXED, missing_id=-5)
    assert isinstance(make_trainer(dataset, tmp_path / "m", recommender=other), Trainer)
