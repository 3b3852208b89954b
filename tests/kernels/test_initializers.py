"""A new row is a pure function of (seed, table, id), equal to NumPy's, on any shards."""

import numpy as np
import pytest

from embedps.tables import Initializer
from tests.kernels.twins import initial_values, shard_of
from tests.tables.builders import (
    constant,
    ids,
    look,
    make_collection,
    make_table,
    rows_in,
    rows_of,
)

EXTREMES = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**32, 2**63 - 1]
IDS = [*EXTREMES, *range(2, 60)]
INITIALIZERS = [
    constant(0.25),
    Initializer.uniform(0.1),
    Initializer(kind="uniform", low=-3.0, high=1.5),
    Initializer.normal(0.02),
    Initializer(kind="normal", low=1.0, high=4.0),
]


@pytest.mark.parametrize("dim", [1, 2, 3, 16, 17])
@pytest.mark.parametrize("initializer", INITIALIZERS, ids=repr)
def test_new_rows_equal_numpy(initializer, dim):
    spec = make_table("C7", dim, initializer=initializer, seed=-5)
    found = look(make_collection([spec], num_shards=2), {"C7": ids(*IDS)}, insert=True)["C7"]
    expected = initial_values(spec, IDS)
    if initializer.kind == "normal":  # log, sin and cos may differ in a double's last bit
        np.testing.assert_allclose(found, expected, rtol=3e-7, atol=1e-7)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("initializer", INITIALIZERS[1::2], ids=repr)
def test_new_rows_are_the_same_on_any_shards_in_any_order(initializer, tmp_path):
    spec = make_table("C7", 5, initializer=initializer, seed=11)
    orders = [IDS, IDS[::-1], list(np.random.default_rng(0).permutation(IDS))]
    found = []
    for num_shards, order in zip([1, 2, 5], orders, strict=True):
        collection = make_collection([spec], num_shards=num_shards)
        for part in np.array_split(np.array(order, np.int64), num_shards + 1):
            look(collection, {"C7": ids(*part)}, insert=True)
        found.append(rows_of(collection, tmp_path / str(num_shards)))
    assert len(found[0]) == len(IDS)
    assert found[0] == found[1] == found[2]


def test_rows_do_not_depend_on_what_they_are_stacked_with():
    spec = make_table("C7", 4)
    others = [make_table("A", 4), make_table("C1", 4)]
    alone = look(make_collection([spec]), {"C7": ids(*IDS)}, insert=True)["C7"]
    batch = {n: ids(*IDS) for n in ("A", "C7", "C1")}
    stacked = look(make_collection([others[0], spec, others[1]]), batch, insert=True)
    np.testing.assert_array_equal(alone, stacked["C7"])
    assert not (stacked["C7"] == stacked["A"]).any()


def test_seed_makes_another_table():
    one, two = (initial_values(make_table("t", 8, seed=s), IDS) for s in (0, 1))
    assert not (one == two).any()


def test_shards_hold_the_ids_that_the_hash_gives_them(tmp_path):
    collection = make_collection([make_table("C7", 2)], num_shards=3)
    look(collection, {"C7": ids(*IDS)}, insert=True)
    files = collection.files.write("base", str(tmp_path), since={})
    shards = shard_of("C7", IDS, 3)
    for file in files:
        expected = {i for i, s in zip(IDS, shards, strict=True) if s == file.shard}
        assert {i for _, i in rows_in([file.path])} == expected
    assert set(shards) == {0, 1, 2}
