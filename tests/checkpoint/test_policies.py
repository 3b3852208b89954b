"""When to cut and when to begin a new base, against the rules written out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedps.checkpoint.policies import (
    REBASE_KINDS,
    Consecutive,
    Intermittent,
    OneShot,
    SavePolicy,
    make_rebase,
)
from embedps.errors import UsageError

SIZES = st.lists(st.integers(1, 10**6), max_size=30)


def test_cut_is_due_by_seconds_or_steps_whichever_is_first():
    both = SavePolicy(secs=10, steps=100)
    assert not both.due(secs=9.9, steps=99)
    assert both.due(secs=10, steps=0)
    assert both.due(secs=0, steps=100)
    assert not SavePolicy(secs=10).due(secs=9, steps=10**9)
    assert not SavePolicy(steps=5).due(secs=1e9, steps=4)
    for wrong in ({"secs": 0}, {"steps": -1}, {"secs": math.nan}):
        with pytest.raises(UsageError, match="must be above 0"):
            SavePolicy(**wrong)


@given(base=st.integers(1, 10**6), deltas=SIZES)
def test_one_shot_never_begins_anew(base, deltas):
    assert OneShot().cumulative
    assert not OneShot().due(base, deltas)


@given(base=st.integers(1, 10**6), deltas=SIZES, cost=st.floats(1.01, 50))
def test_consecutive_keeps_the_predicted_read_cost_under_its_bound(base, deltas, cost):
    policy = Consecutive(max_read_cost=cost)
    predicted = base + sum(deltas) + (deltas[-1] if deltas else 0)
    assert policy.due(base, deltas) == (bool(deltas) and predicted >= cost * base)
    assert not Consecutive(max_read_cost=math.inf).due(base, deltas)


@given(base=st.integers(1, 10**6), deltas=SIZES)
def test_intermittent_does_what_check_n_run_predicts_to_be_cheaper(base, deltas):
    """S_1..S_i relative to the base: anew if 1 + S_1 + ... + S_i <= (i + 1) S_i."""
    due = Intermittent().due(base, deltas)
    if deltas:
        rebased = 1 + sum(d / base for d in deltas)
        going_on = (len(deltas) + 1) * deltas[-1] / base
        assert due == (rebased <= going_on) or math.isclose(rebased, going_on)
    else:
        assert not due


def test_intermittent_begins_anew_after_a_known_number_of_growing_deltas():
    """Deltas of 20%, 40%, 60%, ... of the base: 1 + 0.1 i(i+1) <= 0.2 i(i+1), so at i = 3."""
    policy = Intermittent()
    due = [policy.due(100, [20 * k for k in range(1, i + 1)]) for i in range(6)]
    assert due == [False, False, False, True, True, True]


def test_flags_name_the_policies():
    made = [make_rebase(kind, max_read_cost=3.0) for kind in REBASE_KINDS]
    assert made == [OneShot(), Consecutive(max_read_cost=3.0), Intermittent()]
    with pytest.raises(UsageError, match="max_read_cost must be above 1 but got 1"):
        make_rebase("consecutive", max_read_cost=1.0)
