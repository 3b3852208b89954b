"""A sample of steps has rows with all their steps, or with none."""

import numpy as np

from embedps.checkpoint.format.row_hashes import row_hashes
from embedps.planning.step_sample import StepSample

STEPS = [np.unique(np.random.default_rng(k).integers(0, 3000, 400)) for k in range(10)]


def sample_of(most_ids: int, unit_steps: int = 4) -> StepSample:
    sample = StepSample(["a", "b"], unit_steps=unit_steps, most_ids=most_ids)
    for ids in STEPS:
        sample.add({"a": row_hashes("a", ids), "other": row_hashes("other", ids)})
    return sample


def test_a_large_sample_is_a_share_of_the_rows_and_has_all_of_their_steps():
    sample = sample_of(500)
    assert sample.share == 2.0**-3
    chosen = set()
    for ids, (found, of_b) in zip(STEPS, sample.steps_of(None), strict=True):
        assert of_b == []
        chosen.update(found)
        hashes = row_hashes("a", ids)
        assert found == hashes[hashes % np.uint64(8) == 0].tolist()
    rows = len(np.unique(np.concatenate(STEPS)))
    np.testing.assert_allclose(len(chosen) / rows, sample.share, rtol=0.2)


def test_steps_without_a_row_take_no_memory_of_their_own():
    sample = StepSample(["a", "b"], unit_steps=4, most_ids=1)
    for ids in STEPS:
        sample.add({"a": row_hashes("a", ids)})
    assert sample.num_steps == len(STEPS)
    assert sum(map(len, (a for a, _ in sample.steps_of(None)))) <= 1
    assert len({id(step) for step in sample._steps}) <= 2


def test_a_small_one_is_whole_and_its_units_come_in_the_order_of_a_seed():
    sample = sample_of(1 << 20)
    assert (sample.share, sample.num_steps) == (1.0, 10)
    in_order = list(sample.steps_of(None))
    assert [len(found) for found, _ in in_order] == [len(ids) for ids in STEPS]
    units = [in_order[:4], in_order[4:8], in_order[8:]]
    orders = set()
    for seed in range(20):
        shuffled = list(sample.steps_of(seed))
        assert shuffled == list(sample.steps_of(seed))
        firsts = [k for k in range(10) if shuffled[k] in (u[0] for u in units)]
        order = tuple(units.index(u) for k in firsts for u in units if u[0] == shuffled[k])
        assert shuffled == [step for at in order for step in units[at]]
        orders.add(order)
    assert len(orders) > 3
