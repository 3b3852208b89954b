"""A shard is named if ids were chosen for it, and never by chance."""

import numpy as np
import pytest

from embedps.checkpoint.format.row_hashes import row_hashes, shards_of
from embedps.checkpoint.tools.shard_skew import find_skew


def count(ids, num_shards: int, table: str = "C1") -> dict[int, int]:
    shards, rows = np.unique(shards_of(row_hashes(table, ids), num_shards), return_counts=True)
    return dict(zip(shards.tolist(), rows.tolist(), strict=True))


@pytest.mark.parametrize("num_ids", [1, 3, 10, 30, 100, 1000, 50_000])
@pytest.mark.parametrize("num_shards", [1, 2, 8, 64, 1000])
def test_ids_that_nobody_chose_name_no_shard(num_ids, num_shards):
    for seed in range(10):
        drawn = np.random.default_rng(seed).integers(-(1 << 63), 1 << 63, num_ids, dtype=np.int64)
        numbered = np.arange(seed, seed + num_ids)
        for ids in (drawn, numbered):
            assert find_skew("C1", count(ids, num_shards), num_shards) is None


@pytest.mark.parametrize("num_shards", [2, 8, 64])
@pytest.mark.parametrize("part", [0.1, 1.0])
def test_chosen_ids_name_their_shard_among_random_ones(num_shards, part):
    drawn = np.random.default_rng(1).integers(-(1 << 63), 1 << 63, 200_000, dtype=np.int64)
    of = shards_of(row_hashes("C1", drawn), num_shards)
    chosen = drawn[of == num_shards - 1][:1000]
    others = drawn[-round(len(chosen) * (1 / part - 1)) or len(drawn) :]
    rows = count(np.concatenate([chosen, others]), num_shards)
    times = max(rows.values()) / sum(rows.values()) * num_shards
    expected = num_shards - 1 if times > 1.5 else None
    found = find_skew("C1", rows, num_shards)
    assert (found and found.shard) == expected
    assert (times > 1.5) == (part == 1.0 or num_shards > 6)  # a tenth of two shards is little


def test_the_bound_of_many_rows_is_eight_standard_deviations():
    # Of 16 shards, 1.5 times an even share is 8 standard deviations at 64 * 15 * 4 rows.
    def named(total: int, times: float) -> bool:
        fullest = round(total / 16 * times)
        rest = divmod(total - fullest, 15)[0]
        return find_skew("t", {0: fullest} | dict.fromkeys(range(1, 16), rest), 16) is not None

    assert named(100_000, 1.51)
    assert not named(100_000, 1.49)
    deviations = [(t, 0.6 * t / 16 / np.sqrt(t * 15 / 256)) for t in (1000, 4000)]
    assert [named(t, 1.6) for t, _ in deviations] == [d > 8 for _, d in deviations]


def test_a_table_without_rows_or_with_one_shard_says_nothing():
    assert find_skew("t", {}, 4) is None
    assert find_skew("t", {0: 0, 1: 0}, 4) is None
    assert find_skew("t", {0: 10_000}, 1) is None


def test_the_line_quotes_the_tables_name():
    found = find_skew("a\nb", {3: 710, 0: 290}, 8)
    assert found is not None
    assert found.text() == (
        "table 'a\\nb': shard 3 of 8 has 71% of the rows (5.7 times an even share): "
        "ids may be chosen for it; see Ids in docs/security.md"
    )
