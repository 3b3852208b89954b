"""Cuckoo arrays find the ids that were placed, and no others."""

import numpy as np
import pytest

from embedps.serving.cuckoo import PLACES, buckets_of, find, place, table_salt
from tests.kernels import twins


def make_ids(num_ids: int, kind: str) -> np.ndarray:
    if kind == "counted":
        return np.arange(num_ids, dtype=np.int64) - 1
    rng = np.random.default_rng(num_ids)
    return np.unique(rng.integers(-(2**63), 2**63 - 1, 2 * num_ids + 1))[:num_ids]


@pytest.mark.parametrize("kind", ["counted", "random"])
@pytest.mark.parametrize("num_ids", [0, 1, 2, 3, 4, 5, 7, 8, 9, 20, 100, 5000, 60_000])
def test_placed_ids_are_found_and_absent_ones_are_not(num_ids: int, kind: str) -> None:
    ids = make_ids(num_ids, kind)
    for name in ("C1", "a table"):
        salt = table_salt(name)
        buckets = place([ids[: num_ids // 3], ids[num_ids // 3 :]], salt)
        found = find(buckets, ids, salt)
        assert len(np.unique(found)) == num_ids
        np.testing.assert_array_equal(buckets.reshape(-1)[found], ids)
        others = np.arange(-3, 5000, dtype=np.int64)  # the ids of empty places are among them
        others = np.setdiff1d(np.append(others, make_ids(9000, "random")), ids)
        assert (find(buckets, others, salt) == -1).all()
        if num_ids >= 5000:
            assert len(buckets) * PLACES <= 1.08 * num_ids


def test_an_id_that_comes_twice_is_found_at_one_place() -> None:
    ids = make_ids(1000, "random")
    buckets = place([ids, ids[:5]], 7)
    assert len(np.unique(find(buckets, ids, 7))) == 1000


def test_buckets_are_halves_of_the_rows_hash() -> None:
    ids = make_ids(50, "random")
    assert table_salt("C1") == int(twins.table_salt("C1"))
    hashes = twins.mix64(ids.astype(np.uint64) ^ twins.table_salt("C1"))
    first, second = buckets_of(ids, table_salt("C1"), 1013)
    assert first.tolist() == [(int(h) >> 32) * 1013 >> 32 for h in hashes]
    assert second.tolist() == [(int(h) & 0xFFFF_FFFF) * 1013 >> 32 for h in hashes]
