"""Lookups by stock ops give what the tables of a training give, bit for bit."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.format.quantize import dequantize, from_bfloat16, quantize, to_bfloat16
from embedps.checkpoint.policies import OneShot
from embedps.engine.checkpoint_restore import load_rows
from embedps.serving.row_arrays import RowDtype, stack_rows
from embedps.serving.stock_lookup import StockTables
from embedps.tables import FeatureSpec, Initializer, TableSpec, specs
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.tiered import Tiered
from embedps.training.checkpoint_writer import CheckpointWriter

TABLES = (
    TableSpec(name="a", embedding_dim=3),
    TableSpec(
        name="b", embedding_dim=3, absent="initial", initializer=Initializer.uniform(0.3), seed=-5
    ),
    TableSpec(name="c", embedding_dim=8),
    TableSpec(name="d", embedding_dim=1, absent="initial", initializer=Initializer(low=0.25)),
    TableSpec(
        name="e", embedding_dim=5, absent="initial", initializer=Initializer.normal(2.0), seed=9
    ),
    TableSpec(
        name="f", embedding_dim=3, absent="initial", row_dtype="float16", slot_dtype="bfloat16"
    ),
    TableSpec(name="g", embedding_dim=8, absent="initial", row_dtype="bfloat16"),
)
FEATURES = (
    FeatureSpec(name="one", table="a"),
    FeatureSpec(name="other", table="b"),
    FeatureSpec(name="sum", table="a", ragged=True, combiner="sum"),
    FeatureSpec(name="mean", table="c", ragged=True, combiner="mean"),
    FeatureSpec(name="root", table="b", ragged=True, combiner="sqrtn"),
    FeatureSpec(name="rows", table="c", ragged=True, combiner="none"),
    FeatureSpec(name="last", table="a", ragged=True, combiner="none", max_length=4),
    FeatureSpec(name="narrow", table="d", ragged=True, combiner="mean"),
    FeatureSpec(name="normal", table="e"),
    FeatureSpec(name="float16", table="f"),
    FeatureSpec(name="bfloat16", table="g", ragged=True),
)
NUM_IDS = 3000


def make_collection(
    tables: Sequence[TableSpec] = TABLES, features: Sequence[FeatureSpec] = FEATURES
) -> EmbeddingCollection:
    devices = ["/device:CPU:0"] * 2
    return EmbeddingCollection(tables, features, devices=devices, container="stock-lookup")


def make_batch(rows: int, *, seed: int) -> dict[str, Any]:
    """Half of the ids are among the first NUM_IDS numbers, the others are any."""
    rng = np.random.default_rng(seed)

    def ids(n: int) -> np.ndarray:
        known = rng.integers(-1, NUM_IDS, n)
        return np.where(rng.random(n) < 0.5, known, rng.integers(-(2**63), 2**63 - 1, n))

    batch: dict[str, Any] = {}
    for feature in FEATURES:
        if feature.ragged:
            lengths = rng.integers(0, 40, rows) * rng.integers(0, 2, rows)
            values = tf.constant(ids(int(lengths.sum())))
            batch[feature.name] = tf.RaggedTensor.from_row_lengths(values, lengths)
        else:
            batch[feature.name] = tf.constant(ids(rows))
    return batch


def known_ids() -> dict[str, Any]:
    """A batch of the first NUM_IDS numbers in each feature."""
    ids = np.arange(NUM_IDS, dtype=np.int64)
    lists = tf.RaggedTensor.from_row_lengths(ids, np.ones(NUM_IDS, np.int64))
    return {f.name: lists if f.ragged else tf.constant(ids) for f in FEATURES}


@pytest.fixture(scope="module")
def saved(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[CheckpointDirectory, Manifest, EmbeddingCollection]:
    """A chain of a base, and a delta of removals, updates and new rows."""
    directory = CheckpointDirectory(tmp_path_factory.mktemp("rows"))
    collection = make_collection()
    collection.lookup(known_ids(), insert=True)
    writer = CheckpointWriter(directory, collection, {}, rebase=OneShot())
    fields: dict[str, Any] = {"ledger": {}, "partially_applied": dict, "progress": {}}
    writer.save(step=1, final=False, **fields)
    found = collection.lookup(make_batch(50, seed=1), insert=True)
    gradients = [[tf.ones_like(rows) for rows in group] for group in found.rows]
    rate, step = tf.constant(0.1), tf.constant(7, tf.int64)
    collection.update(found, gradients, learning_rate=rate, step=step)
    collection.evict("a", before_step=7, max_frequency=2**31)
    manifest = writer.save(step=7, final=False, **fields)
    assert [each.kind for each in manifest.chain] == ["base", "delta"]
    return directory, manifest, collection


def stock(
    saved: tuple[CheckpointDirectory, Manifest, Any],
    dtype: RowDtype,
    tables: Sequence[TableSpec] = TABLES,
) -> StockTables:
    return StockTables(stack_rows(saved[0], saved[1], tables, row_dtype=dtype), tables)


def parts_of(value: Any) -> list[np.ndarray]:
    if isinstance(value, tf.RaggedTensor):
        return [value.values.numpy(), value.row_splits.numpy()]
    return [value.numpy()]


def test_activations_are_those_of_the_tables(saved: Any) -> None:
    tables = stock(saved, "float32")
    lookup = tf.function(lambda ids: tables.lookup(FEATURES, ids), reduce_retracing=True)
    for rows in (0, 1, 2, 37, 400):
        batch = make_batch(rows, seed=rows)
        want = saved[2].combine(saved[2].lookup(batch, insert=False))
        found = lookup(batch)
        assert found.keys() == want.keys()
        for name, value in want.items():
            for ours, theirs in zip(parts_of(found[name]), parts_of(value), strict=True):
                if name == "normal":
                    np.testing.assert_allclose(ours, theirs, rtol=3e-7)
                else:
                    np.testing.assert_array_equal(ours, theirs, err_msg=f"{name}, {rows} rows")


def test_encoded_rows_are_rounded_and_absent_ids_are_zeros(saved: Any) -> None:
    features = [f for f in FEATURES if f.name in ("one", "mean")]
    batch = make_batch(300, seed=3)
    batch["mean"] = tf.RaggedTensor.from_tensor(batch["one"][:, None])
    want = saved[2].combine(saved[2].lookup(batch, insert=False))
    for dtype in ("bfloat16", "int8"):
        found = stock(saved, dtype).lookup(features, batch)
        for name in ("one", "mean"):
            exact = want[name].numpy()
            rounded = (
                from_bfloat16(to_bfloat16(exact))
                if dtype == "bfloat16"
                else dequantize(*quantize(exact, "int8"))
            )
            np.testing.assert_array_equal(found[name].numpy(), rounded)
            assert (exact[-1] == 0).all() or (exact == 0).all(axis=1).sum() > 50


@pytest.mark.parametrize("row_dtype", ["bfloat16", "float16"])
def test_rows_are_rounded_as_the_model_declares(saved: Any, row_dtype: specs.RowDtype) -> None:
    """A run that resumes with another dtype holds the checkpoint's rows rounded to it."""
    tables = [dataclasses.replace(t, row_dtype=row_dtype) for t in TABLES]
    features = [f for f in FEATURES if f.name in ("one", "other", "mean", "float16")]
    collection = make_collection(tables)
    load_rows(collection, saved[0], saved[1].chain)
    batch = make_batch(300, seed=3)
    want = collection.combine(collection.lookup(batch, insert=False))
    found = stock(saved, "float32", tables).lookup(features, batch)
    for name, value in found.items():
        np.testing.assert_array_equal(value, want[name], err_msg=name)


def test_a_million_absent_ids_read_as_zeros(saved: Any) -> None:
    tables = stock(saved, "float32")
    rng = np.random.default_rng(5)
    (one,) = [f for f in FEATURES if f.name == "one"]
    lookup = tf.function(lambda ids: tables.lookup([one], {"one": ids})["one"])
    for _ in range(4):
        ids = rng.integers(NUM_IDS, 2**63 - 1, 250_000) * rng.choice([-1, 1], 250_000)
        assert not lookup(tf.constant(ids)).numpy().any()


def test_memory_is_that_of_the_arrays(tmp_path: Path) -> None:
    table = TableSpec(name="t", embedding_dim=32)
    feature = FeatureSpec(name="f", table=table)
    collection = make_collection([table], [feature])
    num_rows = 400_000
    for first in range(0, num_rows, 100_000):
        ids = tf.range(first, first + 100_000, dtype=tf.int64)
        collection.lookup({"f": ids * 7919}, insert=True)
    directory = CheckpointDirectory(tmp_path)
    manifest = CheckpointWriter(directory, collection, {}).save(
        step=1, ledger={}, partially_applied=dict, progress={}, final=True
    )
    tracemalloc.start()
    try:
        (stack,) = stack_rows(directory, manifest, [table])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    of_rows = num_rows * (4 * 32 + 8)
    assert stack.num_rows == num_rows
    assert stack.num_bytes <= 1.1 * of_rows
    # 65,536 rows of a file are at work beside the arrays: 8.9 MB, and as much again.
    assert peak <= 1.1 * of_rows + 3 * 65_536 * (4 * 32 + 8)


def test_memory_with_a_disk_is_that_of_the_ids(tmp_path: Path) -> None:
    table = TableSpec(name="t", embedding_dim=64)
    collection = make_collection([table], [FeatureSpec(name="f", table=table)])
    num_rows = 400_000
    for first in range(0, num_rows, 100_000):
        ids = tf.range(first, first + 100_000, dtype=tf.int64)
        collection.lookup({"f": ids * 7919}, insert=True)
    directory = CheckpointDirectory(tmp_path / "run")
    manifest = CheckpointWriter(directory, collection, {}).save(
        step=1, ledger={}, partially_applied=dict, progress={}, final=True
    )
    memory = Tiered(max_memory_bytes=6_000_000, directory=str(tmp_path / "disk"))
    tracemalloc.start()
    try:
        (stack,) = stack_rows(directory, manifest, [table], memory=memory)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (want,) = stack_rows(directory, manifest, [table])
    np.testing.assert_array_equal(stack.arrays["rows"], want.arrays["rows"])
    # Half a million ids are placed at once, which takes 60 MB; 65,536 rows of a file are at work.
    assert peak < stack.num_bytes / 2 == want.num_bytes / 2
