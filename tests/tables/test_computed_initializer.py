"""Rows that begin with what a function of the user's computes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.evict import Selection, evict
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.tables import Initializer
from tests.builders import dataset_fixture, latest, make_trainer, rows_of
from tests.commands import finish, train
from tests.tables.builders import look, make_collection, make_table
from tests.tables.computed_model import MODULE, Sums, computed
from tests.tables.some_vectors import DIM, of_ids

dataset = dataset_fixture()

BATCHES = ("--batch-size=64", "--unit-rows=512", "--delta-secs=1e6")
IDS = np.concatenate([np.arange(-50, 400) * 999_999_937, [2**63 - 1, -(2**63)]])


def table(name: str = "of_ids", **fields: Any) -> embedps.TableSpec:
    return make_table(embedding_dim=DIM, initializer=computed(name), **fields)


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("row_dtype", ["float32", "bfloat16"])
def test_new_rows_begin_with_what_the_function_computes(num_shards: int, row_dtype: Any) -> None:
    collection = make_collection([table(row_dtype=row_dtype)], num_shards=num_shards)
    (name,) = [f.name for g in collection.groups for f in g.features]
    batch = {name: tf.constant(IDS)}
    assert not look(collection, batch)[name].any()
    found = look(collection, batch, insert=True)[name]
    expected = of_ids(IDS)
    if row_dtype == "bfloat16":
        expected = tf.cast(tf.cast(expected, tf.bfloat16), tf.float32).numpy()
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(look(collection, batch)[name], expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("of_one_shape", r"must return float32 \[2, 4\] but returned float32 \[1, 4\]"),
        ("of_one_dtype", r"must return float32 \[2, 4\] but returned float64 \[2, 4\]"),
        ("of_no_array", r"must return float32 \[2, 4\] but returned list"),
        ("of_infinities", "must return finite numbers but not for id 7"),
        ("of_none", r"must compute vectors but raised KeyError\(5\)"),
    ],
)
def test_a_function_that_computes_no_vectors_is_named_and_makes_no_row(
    name: str, message: str
) -> None:
    collection = make_collection([table(name)])
    (feature,) = [f.name for g in collection.groups for f in g.features]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{MODULE}:{name}' {message}"):
        look(collection, {feature: tf.constant([5, 7], tf.int64)}, insert=True)
    assert not collection.shard_stats()[0].rows["t"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="'nothing:at_all' must be a function that each process"):
        make_collection([make_table(initializer=Initializer.computed("nothing:at_all"))])
    with pytest.raises(UsageError, match="'module:function' but got kind 'function' and function"):
        Initializer.computed("vectors")
    with pytest.raises(UsageError, match=r"and no other, must name one .* got kind 'constant'"):
        Initializer(function="a:b")
    with pytest.raises(UsageError, match="'t': absent must be 'zeros' with an initializer that"):
        table(absent="initial")


def test_a_config_has_the_function() -> None:
    spec = table()
    assert embedps.TableSpec.from_config(spec.get_config()) == spec
    assert "function" not in make_table().to_json()["initializer"]


def test_steps_and_python_do_not_wait_for_each_other() -> None:
    """Lookups of several threads, which call Python, beside a thread that never waits."""
    collection = make_collection([table()], num_shards=2)
    (name,) = [f.name for g in collection.groups for f in g.features]
    ends = threading.Event()

    def spin() -> None:
        while not ends.is_set():
            sum(range(1000))

    def train_some(first: int) -> None:
        for i in range(20):
            ids = np.arange(first + 100 * i, first + 100 * i + 150)
            found = look(collection, {name: tf.constant(ids)}, insert=True)[name]
            np.testing.assert_array_equal(found, of_ids(ids))

    threads = [threading.Thread(target=train_some, args=(1000 * i,)) for i in range(4)]
    spinner = threading.Thread(target=spin)
    spinner.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    ends.set()
    spinner.join()
    assert not any(thread.is_alive() for thread in threads)


def check_rows(model_dir: Path) -> None:
    for name in ("C1", "C3"):
        rows = rows_of(model_dir, name)
        ids = np.array([*rows])
        assert len(ids)
        found = np.array([row["embedding"] for row in rows.values()], np.float32)
        np.testing.assert_array_equal(found, of_ids(ids))


def test_a_run_makes_its_rows_by_it_and_another_number_of_shards_goes_on(
    tmp_path: Path, dataset: Dataset
) -> None:
    model = embedps.Recommender(build=Sums)
    model_dir = tmp_path / "m"
    make_trainer(dataset, model_dir, recommender=model, num_shards=3, num_workers=2).fit()
    check_rows(model_dir)
    before = rows_of(model_dir, "C3").keys()
    evict(CheckpointDirectory(model_dir), "C3", Selection(max_frequency=2**31))
    assert not rows_of(model_dir, "C3")
    make_trainer(dataset, model_dir, recommender=model, num_shards=1, epochs=2).fit()
    check_rows(model_dir)
    assert rows_of(model_dir, "C3").keys() == before
    (described,) = [t for t in latest(model_dir).tables if t["name"] == "C3"]
    assert described["initializer"]["function"] == f"{MODULE}:of_ids"


@pytest.mark.multiprocess
@pytest.mark.slow
def test_servers_call_it(tmp_path: Path, dataset: Dataset) -> None:
    servers = ("--num-ps=2", "--num-workers=1", "--eval=none")
    run = train(dataset, tmp_path / "m", "--model=tests.tables.computed_model", *BATCHES, *servers)
    finish(run)
    check_rows(tmp_path / "m")


def test_a_run_whose_function_fails_ends_in_one_line(tmp_path: Path, dataset: Dataset) -> None:
    model = embedps.Recommender(build=lambda: Sums("of_none"))
    with pytest.raises(UsageError, match=r"of_none' must compute vectors but raised Key"):
        make_trainer(dataset, tmp_path / "m", recommender=model).fit()
