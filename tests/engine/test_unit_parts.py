"""A unit's batches are dealt to ranks in turn; each rank's are one range of rows."""

import itertools

import pytest

from embedps.engine.steps.unit_parts import last_step, rank_of_unit, rank_seed


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("num_rows", [1, 3, 4, 5, 11, 12, 13, 29, 32])
def test_ranks_have_every_row_once_and_the_same_batches_but_one(num_rows, num_ranks):
    batch_rows = 4
    sizes = [min(batch_rows, num_rows - at) for at in range(0, num_rows, batch_rows)]
    ranks = [
        rank_of_unit(100, num_rows, batch_rows=batch_rows, rank=rank, num_ranks=num_ranks)
        for rank in range(num_ranks)
    ]
    at = 100
    for rank, found in enumerate(ranks):
        mine = sizes[rank::num_ranks]
        assert (int(found.first_row), int(found.num_rows)) == (at, sum(mine))
        assert (int(found.num_batches), int(found.unit_batches)) == (len(mine), len(sizes))
        # Only a rank's last batch may be short, as a reader cuts its range.
        assert all(size == batch_rows for size in mine[:-1])
        at += sum(mine)
    assert at == 100 + num_rows
    steps = -(-len(sizes) // num_ranks)
    assert (
        last_step(7, num_rows, batch_rows=batch_rows, num_ranks=num_ranks)
        == 7 + (steps - 1) * num_ranks
    )


def test_seeds_of_ranks_differ_and_that_of_the_first_is_the_units():
    seeds = [[int(rank_seed(seed, rank)) for rank in range(8)] for seed in (0, 1, 2**62, -3)]
    assert [each[0] for each in seeds] == [0, 1, 2**62, -3]
    assert len({*itertools.chain(*seeds)}) == 4 * 8
