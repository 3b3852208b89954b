"""Cuckoo arrays find the ids that were placed, and no others."""

import numpy as np
import pytest

from embedps import constants
from embedps.serving.cuckoo import PLACES, IdHash, buckets_of, find, place, table_salt
from tests.kernels import twins


def unmixed(words: np.ndarray) -> np.ndarray:
    """Inverts mix64."""
    multipliers = [np.uint64(pow(m, -1, 2**64)) for m in constants.SPLITMIX_MULTIPLIERS]
    x = (words ^ (words >> np.uint64(31)) ^ (words >> np.uint64(62))) * multipliers[1]
    x = (x ^ (x >> np.uint64(27)) ^ (x >> np.uint64(54))) * multipliers[0]
    return (x ^ (x >> np.uint64(30)) ^ (x >> np.uint64(60))) - np.uint64(
        constants.SPLITMIX_INCREMENT
    )


def make_ids(num_ids: int, kind: str) -> np.ndarray:
    if kind == "counted":
        return np.arange(num_ids, dtype=np.int64) - 1
    if kind == "chosen":  # both halves of their hashes share their highest bits
        words = np.arange(num_ids, dtype=np.uint64)
        words = (words >> np.uint64(9) << np.uint64(32)) | (words & np.uint64(511))
        return unmixed(words).view(np.int64)
    rng = np.random.default_rng(num_ids)
    return np.unique(rng.integers(-(2**63), 2**63 - 1, 2 * num_ids + 1))[:num_ids]


@pytest.mark.parametrize("kind", ["counted", "random", "chosen"])
@pytest.mark.parametrize("num_ids", [0, 1, 2, 3, 4, 5, 7, 8, 9, 20, 100, 5000, 60_000])
def test_placed_ids_are_found_and_absent_ones_are_not(num_ids: int, kind: str) -> None:
    ids = make_ids(num_ids, kind)
    buckets, id_hash = place([ids[: num_ids // 3], ids[num_ids // 3 :]])
    found = find(buckets, ids, id_hash)
    assert len(np.unique(found)) == num_ids
    np.testing.assert_array_equal(buckets.reshape(-1)[found], ids)
    others = np.arange(-3, 5000, dtype=np.int64)  # the ids of empty places are among them
    others = np.setdiff1d(np.append(others, make_ids(9000, "random")), ids)
    assert (find(buckets, others, id_hash) == -1).all()
    if num_ids >= 5000:
        assert len(buckets) * PLACES <= 1.08 * num_ids


def test_an_id_that_comes_often_is_found_at_one_place() -> None:
    ids = make_ids(1000, "random")
    for repeats in (1, 100):
        buckets, id_hash = place([ids, np.repeat(ids[:5], repeats)])
        assert len(np.unique(find(buckets, ids, id_hash))) == 1000


def test_the_same_ids_have_the_same_places_and_others_another_hash() -> None:
    ids = make_ids(1000, "random")
    buckets, id_hash = place([ids[:300], ids[300:]])
    again, same_hash = place([ids[:300], ids[300:]])
    np.testing.assert_array_equal(buckets, again)
    assert id_hash == same_hash
    assert place([ids[1:]])[1] != id_hash


def test_buckets_are_halves_of_the_hash() -> None:
    ids = make_ids(50, "random")
    words = np.array([(int(i) * 12345 + 678) % 2**64 for i in ids], np.uint64)
    first, second = buckets_of(ids, IdHash(multiplier=12345, summand=678), 1013)
    hashes = twins.mix64(words)
    assert first.tolist() == [(int(h) >> 32) * 1013 >> 32 for h in hashes]
    assert second.tolist() == [(int(h) & 0xFFFF_FFFF) * 1013 >> 32 for h in hashes]


def test_table_salt_is_that_of_the_kernels() -> None:
    assert table_salt("C1") == int(twins.table_salt("C1"))
