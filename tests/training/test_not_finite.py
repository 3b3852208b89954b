"""A loss or a network that is not a number: nothing of it is saved, and there is a way back."""

import dataclasses
import functools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint import Reset, Rows, follow
from embedps.checkpoint.chain import position_of
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_dense, write_dense
from embedps.checkpoint.refs import move_ref
from embedps.data.dataset import Dataset
from embedps.errors import TrainingError, UsageError
from tests.builders import dataset_fixture, latest, make_trainer
from tests.checkpoint.readers import read_chain
from tests.commands import checkpoint_command

# One unit of one step per epoch.
dataset = dataset_fixture(train=(64,))


class Root(tf.keras.Model):
    """A root's slope at 0 is infinite: one step of a finite loss makes a weight NaN."""

    def __init__(self, has_root):
        super().__init__()
        self.embeddings = embedps.Embeddings({"C1": 4})
        self.out = tf.keras.layers.Dense(1)
        self.has_root = has_root

    def call(self, features):
        return self.out(self.embeddings({"C1": features["C1"]})["C1"])

    def compute_loss(self, features, training=False):
        logits = self(features, training=training)[:, 0]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(features["label"], logits)
        root = tf.sqrt(self.out.bias[0] * 0.0) if self.has_root else 0.0
        return tf.reduce_mean(losses) + root


def trainer_of(dataset: Dataset, model_dir: Path, *, epochs: int, has_root: bool = False, **more):
    recommender = embedps.Recommender(build=functools.partial(Root, has_root))
    return make_trainer(dataset, model_dir, recommender=recommender, epochs=epochs, **more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """A run of one epoch, which its tests copy."""
    model_dir = tmp_path_factory.mktemp("trained")
    trainer_of(dataset, model_dir, epochs=1).fit()
    return model_dir


def content_of(model_dir: Path) -> tuple[list, dict[str, bytes], dict]:
    """The rows with slots and counters, the network with its optimizer, the input position."""
    directory, manifest = CheckpointDirectory(model_dir), latest(model_dir)
    (table,) = manifest.tables
    rows = read_chain(directory, manifest, table["group"]).to_pylist()
    assert manifest.dense is not None
    dense = read_dense(directory.file(manifest.dense))
    by_id = sorted(rows, key=lambda row: row["id"])
    return by_id, {n: v.tobytes() for n, v in dense.items()}, manifest.ledger


def commit_not_finite(model_dir: Path) -> None:
    """Commits a checkpoint of a network of NaN, as earlier versions did."""
    directory, manifest = CheckpointDirectory(model_dir), latest(model_dir)
    assert manifest.dense is not None
    number = directory.next_number()
    arrays = read_dense(directory.file(manifest.dense))
    spoilt = {n: v * np.float32(np.nan) if v.dtype == np.float32 else v for n, v in arrays.items()}
    dense = write_dense(directory.dense_path(number), spoilt, root=directory.path)
    directory.commit(dataclasses.replace(manifest, number=number, dense=dense))


def test_not_a_number_ends_the_run_with_advice(tmp_path, dataset):
    rates: dict[str, Any] = {"sparse_learning_rate": 1e30, "dense_learning_rate": 1e30}
    trainer = make_trainer(dataset, tmp_path, epochs=9, **rates)
    with pytest.raises(TrainingError, match=r"not .* lower --sparse-learning-rate") as error:
        trainer.fit()
    assert str(error.value).endswith(
        "and start a new model directory: no checkpoint has only finite values"
    )
    assert CheckpointDirectory(tmp_path).numbers() == []


def test_a_network_that_is_not_finite_is_not_saved(tmp_path, dataset, trained):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    (good,) = CheckpointDirectory(tmp_path).numbers()
    with pytest.raises(TrainingError, match="bias of the network is not finite by step 2") as error:
        trainer_of(dataset, tmp_path, epochs=2, has_root=True).fit()
    assert str(error.value).endswith(
        f"and run again: checkpoint {good}, step 1, the newest, has only finite values"
    )
    assert CheckpointDirectory(tmp_path).numbers() == [good]
    assert [path.name for path in tmp_path.glob("delta-*")] == []


def test_a_new_run_begins_before_the_damage_and_readers_do_not_mix_the_two(
    tmp_path, dataset, trained
):
    old, new = tmp_path / "old", tmp_path / "new"

    def begin_at(at: int | str) -> dict[str, Any]:
        return {"from": f"{old}@{at}"}

    shutil.copytree(trained, old)
    (good,) = CheckpointDirectory(old).numbers()
    commit_not_finite(old)
    move_ref(CheckpointDirectory(old), "good", good)
    with pytest.raises(UsageError, match=r"--from .*@bad: .* has no ref 'bad': there are good"):
        trainer_of(dataset, new, epochs=1, **begin_at("bad"))
    began = f"starts from {old}, checkpoint {good}, step 1"
    for at in (good, "good"):
        trainer = trainer_of(dataset, new, epochs=1, **begin_at(at))
        assert began in trainer._setup.changes
        if at == good:
            trainer.close()
    trainer.fit()
    # A reader that holds the old run's rows, even if both have numbered their saves alike.
    position = position_of(latest(old))
    assert position.number == latest(new).save_number
    first, *changes = follow(new, position)
    assert first == Reset(lost=position)
    rows: dict[int, Any] = {}
    for change in changes:
        if isinstance(change, Rows):
            rows |= {row["id"]: row for row in change.batch.to_pylist()}
    assert [row["embedding"] for _, row in sorted(rows.items())] == [
        row["embedding"] for row in content_of(new)[0]
    ]


def test_a_save_under_way_is_not_committed_once_a_loss_is_no_number(tmp_path, dataset):
    trainer = make_trainer(dataset, tmp_path, epochs=1)
    loop = trainer._loop
    unit = trainer.ledger.take()
    assert unit is not None
    with pytest.raises(TrainingError, match=f"in the steps from {unit.first_step} on"):
        loop._record(unit, {"loss": np.float64("nan")})
    with pytest.raises(TrainingError, match="the loss is not a number"):
        loop.save(final=False)
    assert CheckpointDirectory(tmp_path).numbers() == []
    assert [path.name for path in tmp_path.glob("*-1")] == []
    trainer.close()


def test_the_named_command_goes_back_and_training_goes_on_as_if_nothing_had_been(
    tmp_path, dataset, trained, capsys
):
    for name in ("a", "b c"):
        shutil.copytree(trained, tmp_path / name)
    trainer_of(dataset, tmp_path / "a", epochs=2).fit()

    spoilt = tmp_path / "b c"
    good = latest(spoilt).number
    commit_not_finite(spoilt)
    with pytest.raises(TrainingError, match="the loss is not a number") as error:
        trainer_of(dataset, spoilt, epochs=2).fit()
    assert "\n" not in str(error.value)
    said = re.search(
        f"go back to checkpoint {good}, step 1, the last one with only finite values, by "
        r"`embedps checkpoint rollback '(.*)' --to (\d+)`, then run again$",
        str(error.value),
    )
    assert said is not None
    assert checkpoint_command(["rollback", said[1], "--to", said[2]]) == 0
    assert f"is manifest {good} again: the next run goes on from step 1" in capsys.readouterr().out
    trainer_of(dataset, spoilt, epochs=2).fit()
    assert content_of(spoilt) == content_of(tmp_path / "a")


def test_scores_of_what_is_rolled_back_do_not_act_on_the_next_run(tmp_path, dataset):
    """Inline, a step that was scored is not scored again."""
    for epochs in (1, 2):
        trainer_of(dataset, tmp_path, epochs=epochs, eval="inline").fit()
    evaluations = (tmp_path / "evaluation.jsonl").read_text()
    first = CheckpointDirectory(tmp_path).numbers()[0]
    assert checkpoint_command(["rollback", str(tmp_path), "--to", str(first)]) == 0
    seen: list[int] = []

    class Watcher(embedps.Callback):
        def on_evaluation(self, run, entry):
            seen.append(entry["step"])

    trainer_of(dataset, tmp_path, epochs=2, eval="inline", callbacks=[Watcher()]).fit()
    assert seen == [1, 2]
    aside = (tmp_path / "evaluation.rolled-back.jsonl").read_text()
    assert evaluations.endswith(aside)
    assert aside.count("\n") == 1
