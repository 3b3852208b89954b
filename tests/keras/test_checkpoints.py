"""SaveCheckpoints: `fit` saves what the engine's tools read, and goes on from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.errors import DimMismatchError, DirectoryInUseError, UsageError
from tests.builders import dataset_fixture, latest, make_trainer, read_split
from tests.keras.models import MODELS, features

READ: dict[str, Any] = {"batch_size": 64, "unit_rows": 256, "targets": False}


dataset = dataset_fixture()


def build(name: str) -> tf.keras.Model:
    return MODELS[name](embedps.Embeddings(features()))


def compiled(name: str, rate: float = 0.01) -> tf.keras.Model:
    model = build(name)
    model.compile(tf.keras.optimizers.AdamW(rate))
    return model


def fit(model: tf.keras.Model, dataset: Dataset, model_dir: Path, **options: Any) -> Any:
    callback = embedps.SaveCheckpoints(model_dir, dataset, **options)
    return model.fit(embedps.read(dataset, **READ), verbose=0, callbacks=[callback])


@pytest.mark.parametrize("name", ["dlrm", pytest.param("mmoe", marks=pytest.mark.slow)])
def test_what_fit_saves_is_loaded_and_continued(
    tmp_path: Path, dataset: Dataset, name: str
) -> None:
    model = compiled(name)
    fit(model, dataset, tmp_path)
    steps = int(model.embeddings.own.step)
    assert latest(tmp_path).final
    assert latest(tmp_path).step == steps == 48
    recommender = embedps.Recommender(build=lambda: build(name))
    loaded = embedps.load(tmp_path, recommender=recommender, data=dataset.directory)
    data = embedps.read(dataset, "eval", batch_size=4096, targets=False)
    if name == "dlrm":
        scores = loaded.predict(read_split(dataset))["score"]
        np.testing.assert_allclose(model.predict(data, verbose=0)["score"], scores, rtol=1e-6)
    before = model.evaluate(data, verbose=0)
    again = compiled(name)
    restoring = embedps.SaveCheckpoints(tmp_path, dataset)
    restoring.set_model(again)
    restoring.on_train_begin()
    restoring._open.close()
    assert again.evaluate(data, verbose=0) == pytest.approx(before, rel=1e-6)
    for ours, theirs in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    fit(again, dataset, tmp_path)
    assert latest(tmp_path).step == 2 * steps
    chain = latest(tmp_path).chain
    assert chain[-1].kind == "delta"


def test_steps_say_when_and_a_fit_that_fails_keeps_what_it_saved(
    tmp_path: Path, dataset: Dataset
) -> None:
    seen: list[int] = []

    class Stop(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            last = CheckpointDirectory(tmp_path).latest()
            seen.append(0 if last is None else last.step)
            if batch == 45:
                raise KeyboardInterrupt

    saves = embedps.SaveCheckpoints(tmp_path, dataset, every_steps=20)
    model = compiled("dlrm")
    with pytest.raises(KeyboardInterrupt):
        model.fit(embedps.read(dataset, **READ), verbose=0, callbacks=[saves, Stop()])
    assert sorted(set(seen)) == [0, 20, 40]
    assert latest(tmp_path).step == 40
    model.fit(embedps.read(dataset, **READ), verbose=0, callbacks=[saves])
    assert latest(tmp_path).step == 40 + 48


def test_others_are_refused(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(UsageError, match="every_steps must be an integer from 1 on but got 0"):
        embedps.SaveCheckpoints(tmp_path, dataset, every_steps=0)
    fit(compiled("dlrm"), dataset, tmp_path)
    with pytest.raises(DimMismatchError):
        fit(compiled("mmoe"), dataset, tmp_path)
    trainer = make_trainer(dataset, tmp_path / "engine")
    with pytest.raises(DirectoryInUseError):
        fit(compiled("dlrm"), dataset, tmp_path / "engine")
    trainer.close()
