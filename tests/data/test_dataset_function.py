"""Runs on what a user's function makes: any tf.data.Dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.data.columns import Columns
from embedps.data.dataset import Dataset
from embedps.data.dataset_function import DatasetFunction, DatasetReader
from embedps.errors import DatasetError, UsageError
from tests.builders import (
    COLUMNS,
    dataset_fixture,
    make_dlrm,
    make_trainer,
    read_split,
)
from tests.training.same_bits import FIELDS, assert_same_checkpoint

BATCH, ROWS = 64, 1536

dataset = dataset_fixture(train=(ROWS,), row_group_rows=512)


def arrays_of(dataset: Dataset) -> dict[str, np.ndarray]:
    rows = read_split(dataset, "train")
    return {name: rows[name].to_numpy() for name in ("label", *COLUMNS)}


def function_of(dataset: Dataset) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """Gives the rows of the files, in their order."""
    arrays = arrays_of(dataset)

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(arrays).batch(
            context.get_per_replica_batch_size(BATCH)
        )

    return make


def in_any_order() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = False
    return options


def in_parts(data: tf.data.Dataset, seed: int | None) -> tf.data.Dataset:
    """Shuffles within a function of the dataset."""
    parts = tf.data.Dataset.range(1).interleave(lambda _: data.shuffle(9, seed=seed))
    return parts.apply(tf.data.experimental.assert_cardinality(data.cardinality()))


def test_rows_in_memory_train_the_bits_of_the_same_rows_in_files_also_when_resumed(
    tmp_path, dataset
):
    fields: dict[str, Any] = {**FIELDS, "shuffle": False}
    make_trainer(dataset, tmp_path / "files", epochs=2, **fields).fit()
    for epochs in (1, 2):
        trainer = make_trainer(
            dataset,
            tmp_path / "memory",
            epochs=epochs,
            dataset_fn=function_of(dataset),
            **fields,
        )
        result = trainer.fit()
    assert (result.examples, result.units.done) == (2 * ROWS, 6)
    assert_same_checkpoint(tmp_path / "files", tmp_path / "memory")


def test_replicas_train_the_bits_of_the_same_rows_in_files(tmp_path, dataset):
    way: dict[str, Any] = {"replicas": 2, "shuffle": False, "epochs": 2}
    for name, made in (("files", None), ("memory", function_of(dataset))):
        make_trainer(dataset, tmp_path / name, dataset_fn=made, **{**FIELDS, **way}).fit()
    assert_same_checkpoint(tmp_path / "files", tmp_path / "memory")


def test_generator_of_tuples_trains_without_files_and_the_model_predicts(tmp_path):
    """In one pipeline that has no end of its own; the label and the weights come beside."""

    def rows() -> Any:
        rng = np.random.default_rng(3)
        while True:
            ids = rng.integers(0, 50, BATCH)
            yield {"C1": ids, "I1": rng.random(BATCH)}, (ids % 2).astype(np.int32), np.ones(BATCH)

    def make(_: tf.distribute.InputContext) -> tf.data.Dataset:
        of = [tf.TensorSpec([None], d) for d in (tf.int64, tf.float64, tf.int32, tf.float64)]
        signature = ({"C1": of[0], "I1": of[1]}, of[2], of[3])
        return tf.data.Dataset.from_generator(rows, output_signature=signature)

    data = make(tf.distribute.InputContext())
    described = embedps.describe_dataset(tmp_path / "d", data, labels=["click"], weight="w")
    assert described.columns == ("click", "I1", "C1", "w")
    recommender = make_dlrm(described)
    endless = DatasetFunction(function=make, batches=100, resumable=False)
    trainer = make_trainer(
        described,
        tmp_path / "m",
        recommender=recommender,
        dataset_fn=endless,
        sparse_learning_rate=1.0,
        dense_learning_rate=0.05,
    )
    result = trainer.fit()
    assert result.examples == 100 * BATCH
    model = embedps.load(tmp_path / "m", recommender=recommender, data=tmp_path / "d")
    ids = np.arange(50)
    scores = model.predict({"C1": ids, "I1": np.full(50, 0.5, np.float32)})["score"]
    assert scores[ids % 2 == 1].min() > scores[ids % 2 == 0].max()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.map(lambda x: {"label": x["label"]}), "column 'I1'.*it gives label"),
        (
            lambda d: d.map(lambda x: {**x, "C2": tf.as_string(x["C2"])}),
            "column 'C2' of dataset_fn must be of integers.* but is string: map it",
        ),
        (
            lambda d: d.map(lambda x: {**x, "C2": x["I1"]}),
            "column 'C2' of dataset_fn must be of integers.* but is float32",
        ),
        (
            lambda d: d.map(lambda x: {**x, "I1": x["I1"][:, None]}),
            r"column 'I1' of dataset_fn must have shape \[rows\] but has \(None, 1\)",
        ),
        (
            lambda d: (
                d.unbatch()
                .batch(32, drop_remainder=True)
                .apply(tf.data.experimental.assert_cardinality(48))
            ),
            r"must have batch_size=64 rows but column '\w+' has shape \(32,\)",
        ),
        (lambda d: d.repeat(), "pipeline 0 must be known but is infinite: .*batches=N"),
        (lambda d: d.filter(lambda x: True), "must be known but is unknown"),
        (lambda d: d.take(0), "must be known but is 0"),
        (lambda d: d.map(lambda x: x["I1"]), "must be a dict of columns by name"),
        (lambda d: 7, "dataset_fn must give a tf.data.Dataset but gave a int"),
        (lambda d: d.shuffle(9), "same batches each time it is read, but shuffles without a seed"),
        (
            lambda d: d.map(dict, num_parallel_calls=2, deterministic=False),
            "same batches each time it is read, but has deterministic=False: leave that out",
        ),
        (lambda d: d.with_options(in_any_order()), "but has deterministic=False"),
        (lambda d: in_parts(d, None), "give each shuffle and list_files a seed, or use"),
    ],
)
def test_dataset_that_does_not_fit_is_refused_in_one_line(tmp_path, dataset, change, message):
    made = function_of(dataset)
    with pytest.raises(UsageError, match=message) as refused:
        make_trainer(dataset, tmp_path, dataset_fn=lambda context: change(made(context)))
    assert "\n" not in str(refused.value)


def test_shuffle_with_a_seed_has_one_order_unless_it_was_made_before(tmp_path, dataset):
    make = function_of(dataset)
    for name, sittings in (("whole", [2]), ("resumed", [1, 2])):
        for epochs in sittings:
            make_trainer(
                dataset,
                tmp_path / name,
                epochs=epochs,
                dataset_fn=lambda context: in_parts(make(context).shuffle(9, seed=1), 2),
                **FIELDS,
            ).fit()
    assert_same_checkpoint(tmp_path / "whole", tmp_path / "resumed")
    before = make(tf.distribute.InputContext()).shuffle(9, seed=1)
    with pytest.raises(UsageError, match="shuffles without a seed, or outside of the function"):
        make_trainer(dataset, tmp_path / "before", dataset_fn=lambda _: before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.take(9), "dataset_fn must give as many batches .* ended early"),
        (lambda d: d.unbatch().batch(65), "must have batch_size=64 rows at most"),
    ],
)
def test_dataset_that_gives_something_else_than_it_says_ends_the_run(
    tmp_path, dataset, change, message
):
    made = function_of(dataset)
    given = DatasetFunction(function=lambda context: change(made(context)), batches=24)
    trainer = make_trainer(dataset, tmp_path, dataset_fn=given)
    with pytest.raises(DatasetError, match=message) as ended:
        trainer.fit()
    assert "\n" not in str(ended.value)


def read(make: Callable[..., tf.data.Dataset], *, remote: bool) -> DatasetReader:
    source, columns = DatasetFunction(function=make), Columns(ids=("C1",))
    return DatasetReader(source, columns, batch_rows=3, label="label", weight="", remote=remote)


def test_dataset_that_calls_python_is_refused_where_workers_are_other_processes():
    def make(_: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf.data.Dataset.range(9).map(
            lambda x: {"C1": tf.ensure_shape(tf.py_function(lambda y: y, [x], tf.int64), [None])}
        )

    read(make, remote=False)
    with pytest.raises(UsageError, match=r"calls Python, .* which the workers of a cluster cannot"):
        read(make, remote=True)


def test_dataset_that_was_made_before_is_refused_where_workers_are_other_processes():
    data = tf.data.Dataset.from_tensors({"C1": [1, 2, 3]})
    for make in (lambda _: data, lambda _: data.repeat(3)):
        read(make, remote=False)
        with pytest.raises(UsageError, match="must make its dataset within the function"):
            read(make, remote=True)


def test_what_cannot_go_together_is_refused(tmp_path, dataset):
    made = function_of(dataset)
    with pytest.raises(UsageError, match=r"must be a function .* but is a _Batch"):
        make_trainer(dataset, tmp_path, dataset_fn=made(tf.distribute.InputContext()))
    with pytest.raises(UsageError, match="must not go with --watch"):
        make_trainer(dataset, tmp_path, dataset_fn=made, watch=str(tmp_path))
    with pytest.raises(UsageError, match="batches must be at least 1"):
        DatasetFunction(function=made, batches=0)
    with pytest.raises(UsageError, match="has a dataset with rows"):
        embedps.describe_dataset(dataset.directory, made(tf.distribute.InputContext()))


def test_run_goes_on_with_another_number_of_pipelines_as_with_other_data(tmp_path, dataset):
    made = function_of(dataset)
    make_trainer(dataset, tmp_path, dataset_fn=made).fit()
    other = DatasetFunction(function=made, batches=24, pipelines=2)
    result = make_trainer(dataset, tmp_path, dataset_fn=other).fit()
    assert result.examples == 3 * ROWS
