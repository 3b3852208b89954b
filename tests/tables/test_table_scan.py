"""A walk over the rows, and the counts beside it, tell what a plain count of the batches does."""

import numpy as np
import pytest
import tensorflow as tf

from embedps.tables import FeatureSpec, MinCount, SizeLimit
from embedps.tables.table_scan import NUM_HOTTEST
from tests.tables.builders import constant, ids, look, make_collection, make_table, train

STEPS, BATCH, IDS = 400, 256, 20_000


def test_the_hottest_ids_are_those_of_an_exact_count():
    rng = np.random.default_rng(7)
    weights = np.arange(1, IDS + 1) ** -1.1
    stream = rng.choice(IDS, (STEPS, BATCH), p=weights / weights.sum())
    collection = make_collection([make_table()], num_shards=2)
    updates, lookups = np.zeros(IDS, np.int64), 0
    for step, batch in enumerate(stream):
        train(collection, {"t": tf.constant(batch, tf.int64)}, {"t": np.ones(1)}, step=step)
        updates[np.unique(batch)] += 1  # what a row counts
        lookups += len(np.unique(batch))
    scan = collection.make_scan()()["t"]
    assert (scan.rows, scan.updates) == ((updates > 0).sum(), updates.sum())
    order = np.lexsort((np.arange(IDS), -updates))[:NUM_HOTTEST]
    assert scan.hottest == [(int(i), int(updates[i])) for i in order]
    occurrences = np.bincount(stream.ravel(), minlength=IDS)
    least = np.sort(occurrences)[-NUM_HOTTEST]
    recall = (occurrences[[i for i, _ in scan.hottest]] >= least).mean()
    assert recall >= 0.99
    ranked = np.sort(updates[updates > 0])[::-1]
    exact = ranked[: round(0.01 * len(ranked))].sum() / ranked.sum()
    assert scan.frequencies.share_of_top(0.01) == pytest.approx(exact, rel=0.02)
    shards = collection.use()
    assert sum(shard.tables["t"].lookups for shard in shards) == lookups
    assert [shard.tables["t"].batches for shard in shards] == [STEPS, STEPS]


def test_norms_are_those_of_the_embeddings():
    tables = [make_table("a", initializer=constant(2.0)), make_table("b", embedding_dim=9)]
    collection = make_collection(tables)
    many = tf.range(2000, dtype=tf.int64)
    look(collection, {"a": many, "b": many[:0]}, insert=True)
    scans = collection.make_scan()()
    assert scans["a"].norm_percentiles([1, 50, 99]) == pytest.approx([4.0] * 3, rel=0.02)
    assert scans["b"].norm_percentiles([50]) == []
    assert scans["b"].hottest == []


def test_rows_that_went_and_ids_that_got_none_are_counted_by_table():
    tables = [
        make_table("full", capacity=2),
        make_table("displaced", eviction=(SizeLimit(max_rows=2),)),
        make_table("admitting", admission=MinCount(count=2)),
    ]
    collection = make_collection(tables)
    for step in range(2):
        batch = {t.name: ids(1, 2, 3, 4) for t in tables}
        train(collection, batch, {t.name: np.ones(1) for t in tables}, step=step)
    used = collection.use()[0].tables
    assert used["full"].rows == 2
    assert used["full"].refused == 4
    assert used["displaced"].evicted["limit"] > 0
    assert used["admitting"].rows == 4
    assert used["admitting"].refused == 4


def test_a_collection_without_updates_can_be_scanned():
    feature = FeatureSpec(name="f", table=make_table())
    collection = make_collection([], [feature], trainable=False)
    assert collection.make_scan()()["t"].rows == 0
