"""Declarations of eviction, and a collection that evicts beside training."""

import time
from typing import Any, cast

import numpy as np
import pytest

from embedps.engine.checkpoint_restore import describe_tables, eviction_changes
from embedps.errors import UsageError
from embedps.tables import SGD, MinNorm, SizeLimit, TimeToLive
from tests.tables.builders import constant, ids, look, make_collection, make_table, train

AGE = TimeToLive(steps=10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TimeToLive(), "a TimeToLive must have steps or event_secs above 0"),
        (
            lambda: TimeToLive(event_secs=-1),
            r"TimeToLive.event_secs must be a whole number in \[0, 10000000000\] but got -1",
        ),
        (lambda: TimeToLive(steps=2**32), "TimeToLive.steps must be .* but got 4294967296"),
        (
            lambda: TimeToLive(steps=cast(int, 1.5)),
            "steps must be a whole number .* got 1.5",
        ),
        (lambda: SizeLimit(), "a SizeLimit must have max_rows or max_bytes above 0"),
        (lambda: SizeLimit(max_rows=-1), r"SizeLimit.max_rows must be .* \[0, .* but got -1"),
        (
            lambda: SizeLimit(max_rows=1, order=cast(Any, "oldest")),
            "SizeLimit.order must be one of least_recent, least_frequent but got 'oldest'",
        ),
        (lambda: MinNorm(norm=0), "MinNorm.norm must be above 0 and finite but got 0"),
        (lambda: MinNorm(norm=float("nan")), "MinNorm.norm must be above 0 and finite but got nan"),
        (
            lambda: make_table(eviction=(AGE, TimeToLive(steps=3))),
            "table 't': eviction must have one TimeToLive but has several",
        ),
        (
            lambda: make_table(eviction=("ttl",)),
            r"table 't': eviction must have policies \(TimeToLive.*\) but got 'ttl'",
        ),
        (
            lambda: make_table(eviction=MinNorm(norm=1)),
            r"table 't': eviction must be a tuple of policies but got MinNorm\(norm=1\): write",
        ),
        (
            lambda: make_table(admission="often"),
            "table 't': admission must be MinCount, Chance or None but got 'often'",
        ),
        (
            lambda: make_table(capacity=5, eviction=(SizeLimit(max_rows=3),)),
            "table 't': capacity 5 refuses new ids and max_rows 3 displaces rows for them",
        ),
        (
            lambda: make_collection([make_table(eviction=(SizeLimit(max_bytes=200_000),))]),
            None,
        ),
        (
            # A row has 16 + 4 * 4 + 4 bytes with row-wise Adagrad.
            lambda: make_collection(
                [make_table(eviction=(SizeLimit(max_bytes=200_000),))], num_shards=2
            ),
            "^table 't': max_bytes must be at least 151552 per parameter server but is 100000$",
        ),
    ],
)
def test_bad_declarations_get_one_line(make, message):
    if message is None:
        make()
        return
    with pytest.raises(UsageError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_checkpoints_store_policies_and_a_resume_says_what_changed():
    policies = (AGE, SizeLimit(max_rows=7, order="least_frequent"))
    before = make_collection([make_table("a", eviction=policies), make_table("b")])
    stored = describe_tables(before)
    assert stored[0]["eviction"] == [
        {"kind": "TimeToLive", "steps": 10, "event_secs": 0},
        {"kind": "SizeLimit", "max_rows": 7, "max_bytes": 0, "order": "least_frequent"},
    ]
    assert "eviction" not in stored[1]

    class _Manifest:
        tables = stored

    assert eviction_changes(_Manifest, before) == []  # type: ignore[arg-type]
    after = make_collection([make_table("a"), make_table("b", eviction=(MinNorm(norm=0.5),))])
    assert eviction_changes(_Manifest, after) == [  # type: ignore[arg-type]
        "table 'a': eviction is none, the checkpoint has TimeToLive(steps=10, event_secs=0) "
        "SizeLimit(max_rows=7, max_bytes=0, order=least_frequent): from now on it holds for the "
        "restored rows too",
        "table 'b': eviction is MinNorm(norm=0.5), the checkpoint has none: from now on it holds "
        "for the restored rows too",
    ]


def test_old_rows_go_while_training_continues():
    spec = make_table(
        "t", 2, optimizer=SGD(), initializer=constant(1.0), eviction=(TimeToLive(steps=4),)
    )
    collection = make_collection([spec, make_table("u", 2, optimizer=SGD())], num_shards=2)
    everything = {"t": ids(*range(100)), "u": ids(*range(100))}
    upstream = {name: np.ones((100, 2), np.float32) for name in everything}
    train(collection, everything, upstream, step=1)
    some = {"t": ids(*range(20)), "u": ids(*range(20))}
    upstream = {name: np.ones((20, 2), np.float32) for name in some}
    deadline = time.monotonic() + 60
    step = 1
    while collection.stats().rows["t"] > 20:  # each shard's thread evicts
        step += 1
        train(collection, some, upstream, step=step)
        assert time.monotonic() < deadline
    assert collection.stats().rows == {"t": 20, "u": 100}
    assert collection.eviction_stats() == {
        "t": {"age": 80, "norm": 0, "limit": 0, "hand": 0},
        "u": {"age": 0, "norm": 0, "limit": 0, "hand": 0},
    }
    assert (look(collection, {"t": ids(50), "u": ids()})["t"] == 0).all()
    assert (look(collection, {"t": ids(50), "u": ids()}, insert=True)["t"] == 1).all()


def test_a_follower_does_not_evict():
    spec = make_table("t", 2, eviction=(SizeLimit(max_rows=1), AGE))
    follower = make_collection([spec], trainable=False)
    look(follower, {"t": ids(*range(50))}, insert=True)
    follower.sweep()
    assert follower.stats().rows == {"t": 50}
