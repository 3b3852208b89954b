"""The ledger: every row once per epoch, in an order per epoch, over any number of runs."""

import collections
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.checkpoint.format.ledger_state import check_ledger
from embedps.data.dataset_metadata import Split
from embedps.errors import CorruptCheckpointError, UsageError
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.ledger import Ledger, Unit
from tests.builders import make_listed


def make_ledger(dataset=None, *, epochs=1, **fields):
    values = {"batch_rows": 10, "unit_rows": 100} | fields
    return Ledger(dataset or make_listed(), LedgerOptions(**values), epochs=epochs)


def begin(ledger):
    unit = ledger.take()
    if unit is not None:
        ledger.begin(unit)
    return unit


def take_all(ledger):
    units = []
    while (unit := begin(ledger)) is not None:
        units.append(unit)
        ledger.done(unit)
    return units


def rows_of(units):
    return [(u.path, u.first_row + i) for u in units for i in range(u.num_rows)]


def test_inner_rows_are_the_end_of_each_unit_and_no_row_is_lost():
    dataset, share = make_listed([[90, 60], [45]]), {"inner_share": 0.3}
    trained, inner = (take_all(make_ledger(dataset, **share, inner=i)) for i in (False, True))
    assert sorted(u.num_rows for u in trained) == [32, 42, 63]
    assert not {*rows_of(trained)} & {*rows_of(inner)}
    assert sorted(rows_of(trained) + rows_of(inner)) == sorted(
        rows_of(take_all(make_ledger(dataset)))
    )
    state = make_ledger(dataset, **share).state()
    assert (state["made_of"]["rows"], state["made_of"]["inner_share"]) == (137, 0.3)
    check_ledger(state, Path("M"))
    with pytest.raises(CorruptCheckpointError, match="made_of"):
        check_ledger({**state, "made_of": {**state["made_of"], "inner_share": 2.0}}, Path("M"))


def test_inner_folds_leave_out_each_row_once_and_train_on_all_others():
    dataset = make_listed([[90, 60], [45]])
    every, held = sorted(rows_of(take_all(make_ledger(dataset)))), []
    for fold in range(5):
        options = {"inner_share": 0.2, "inner_fold": fold}
        inner = rows_of(take_all(make_ledger(dataset, **options, inner=True)))
        trained = take_all(make_ledger(dataset, **options))
        assert sorted(rows_of(trained) + inner) == every
        assert all(unit.num_rows for unit in trained)
        held += inner
    assert sorted(held) == every
    ledger, other = (make_ledger(dataset, inner_share=0.2, inner_fold=fold) for fold in (1, 2))
    assert not other.is_of(ledger.state())
    check_ledger(ledger.state(), Path("M"))
    for wrong in (5, -1, 0.5):
        made = {**ledger.state()["made_of"], "inner_fold": wrong}
        with pytest.raises(CorruptCheckpointError, match="made_of"):
            check_ledger({**ledger.state(), "made_of": made}, Path("M"))


def test_run_that_is_told_to_hold_out_inner_rows_goes_on_from_the_next_epoch():
    ledger, later = make_ledger(epochs=2), make_ledger(epochs=2, inner_share=0.1)
    later.restore(ledger.state())
    assert "; inner_share is 0.1, the checkpoint has 0: this holds from" in later.changes[0]


row_groups = st.lists(
    st.lists(st.integers(1, 90) | st.just(0), min_size=0, max_size=6), min_size=1, max_size=5
).filter(lambda files: any(map(sum, files)))


@given(
    files=row_groups, batch=st.integers(1, 40), extra=st.integers(0, 100), seed=st.integers(0, 9)
)
@settings(max_examples=60, deadline=None)
def test_every_row_is_in_one_unit_an_epoch(files, batch, extra, seed):
    dataset = make_listed(files)
    ledger = make_ledger(dataset, epochs=3, batch_rows=batch, unit_rows=batch + extra, seed=seed)
    units = take_all(ledger)
    expected = [
        (f"/data/train/{i}.parquet", row) for i, g in enumerate(files) for row in range(sum(g))
    ]
    per = ledger.units_per_epoch
    assert len(units) == 3 * per == ledger.num_units
    assert ledger.num_rows == 3 * len(expected)
    for epoch in range(3):
        assert sorted(rows_of(units[epoch * per : (epoch + 1) * per])) == expected
    assert all(1 <= u.num_rows <= batch + extra for u in units)
    assert [u.position for u in units] == list(range(3 * per))
    assert ledger.finished
    assert ledger.steps_done() == 3 * ledger.steps_per_epoch


def test_units_end_at_row_groups_where_these_fit():
    units = take_all(make_ledger(make_listed([(40, 40, 40, 40)]), unit_rows=100, shuffle=False))
    assert [(u.first_row, u.num_rows) for u in units] == [(0, 80), (80, 80)]


def test_empty_row_groups_cut_nothing():
    files = [(), (0,), (0, 40, 0, 0, 40, 40, 0, 40, 0), (0, 0)]
    units = take_all(make_ledger(make_listed(files), unit_rows=100, shuffle=False))
    assert [(u.path[-9:], u.first_row, u.num_rows) for u in units] == [
        ("2.parquet", 0, 80), ("2.parquet", 80, 80)
    ]  # fmt: skip
    with pytest.raises(UsageError, match="has no rows"):
        make_ledger(make_listed([(0,), (0, 0)]))


def test_row_group_greater_than_a_unit_is_split():
    units = take_all(make_ledger(make_listed([(250, 40)]), unit_rows=100, shuffle=False))
    assert [(u.first_row, u.num_rows) for u in units] == [
        (0, 100), (100, 100), (200, 50), (250, 40)
    ]  # fmt: skip


def order(ledger):
    per = ledger.units_per_epoch
    units = [(u.path, u.first_row) for u in take_all(ledger)]
    return [units[i : i + per] for i in range(0, len(units), per)]


def test_order_follows_from_seed_and_epoch():
    first, second = order(make_ledger(epochs=2, seed=5))
    assert first != second
    assert [first, second] == order(make_ledger(epochs=2, seed=5))
    assert first != order(make_ledger(seed=6))[0]
    plain = order(make_ledger(epochs=2, shuffle=False))
    assert plain[0] == plain[1] == sorted(first)


def test_units_of_an_epoch_have_seeds_of_their_own():
    units = take_all(make_ledger(epochs=2, seed=3))
    assert len({u.seed for u in units}) == len(units)
    assert [u.seed for u in units] == [u.seed for u in take_all(make_ledger(epochs=2, seed=3))]


def test_first_step_counts_the_steps_of_the_positions_before():
    step = 0
    for unit in take_all(make_ledger(epochs=2, batch_rows=7)):
        assert unit.first_step == step
        step += -(-unit.num_rows // 7)


def test_unit_is_a_function_of_its_position_whatever_order_it_is_asked_in():
    straight = take_all(make_ledger(epochs=3))
    ledger = make_ledger(epochs=3)
    held = [ledger.take() for _ in range(len(straight))]
    for unit in held[:5]:
        ledger.give_back(unit)
    again = [ledger.take() for _ in range(5)]  # after units of the last epoch
    assert again == straight[:5]
    assert held == straight


def test_a_unit_is_made_without_a_look_at_all_others():
    ledger = make_ledger(unit_rows=4, batch_rows=2)
    expected = ledger.units_of(0)

    class Ranges(list):
        def __iter__(self):
            raise AssertionError("all units are looked at for one")

    ledger._division.ranges = Ranges(ledger._division.ranges)
    assert ledger.units_of(0) == expected


def test_given_back_unit_comes_first_and_is_counted_when_it_begins_again():
    ledger = make_ledger()
    a, b, c = (begin(ledger) for _ in range(3))
    ledger.done(b)
    ledger.give_back(c)
    ledger.give_back(a)
    assert ledger.state()["doing"] == [0, 2]
    assert ledger.num_repeated == 0
    assert [begin(ledger), begin(ledger)] == [a, c]
    assert ledger.state()["doing"] == [0, 2]
    assert ledger.num_repeated == 2
    assert ledger.num_done == 1
    assert ledger.take().position == 3


def test_take_ends_where_all_is_handed_out_though_not_done():
    ledger = make_ledger(make_listed([(10,), (10,)]))
    a, b = ledger.take(), ledger.take()
    assert ledger.take() is None
    assert not ledger.finished
    ledger.give_back(a)
    assert ledger.take() == a
    ledger.done(a)
    ledger.done(b)
    assert ledger.finished


def test_units_in_progress_are_repeated_and_counted_after_a_restore():
    ledger = make_ledger()
    units = [begin(ledger) for _ in range(6)]
    for i in (0, 2, 4):
        ledger.done(units[i])
    state = ledger.state()
    assert state["doing"] == [1, 3, 5]
    restored = make_ledger()
    restored.restore(state)
    assert restored.num_done == 3
    assert restored.num_repeated == 3
    rest = take_all(restored)
    assert [u.position for u in rest] == [1, 3, *range(5, restored.num_units)]
    assert sorted(rows_of(rest + [units[i] for i in (0, 2, 4)])) == sorted(
        rows_of(take_all(make_ledger()))
    )
    assert restored.num_done == restored.num_units


def test_unit_that_no_worker_began_is_not_repeated():
    ledger = make_ledger()
    a, b = ledger.take(), ledger.take()
    ledger.give_back(b)
    assert ledger.state()["doing"] == []
    assert ledger.num_repeated == 0
    assert ledger.take() == b
    restored = make_ledger()
    restored.restore(ledger.state())
    assert restored.take() == a
    assert restored.num_repeated == 0


def test_units_since_a_state_are_done_again_and_are_in_doubt_until_then():
    ledger = make_ledger(epochs=2)
    first, second = begin(ledger), begin(ledger)
    ledger.done(second)
    state = ledger.state()
    third, fourth = begin(ledger), begin(ledger)
    for unit in (first, third):
        ledger.done(unit)
    ledger.give_back(fourth)
    steps = ledger.steps_done()
    assert ledger.go_back(state, in_part=True) == ([first, third], 2)
    assert (ledger.num_done, ledger.num_undone) == (1, 2)
    assert ledger.steps_done() < steps
    now = ledger.state()
    assert now["beyond"] == state["beyond"]
    assert now["doing"] == [u.position for u in (first, third, fourth)]
    assert ledger.partially_applied(now)["doing"] == now["doing"]
    assert [begin(ledger) for _ in range(3)] == [first, third, fourth]
    assert ledger.num_repeated == 2  # those in progress, then and now; logs know the other
    ledger.done(first)
    assert ledger.num_undone == 1
    assert ledger.go_back(state, in_part=True) == ([first], 3)
    assert rows_of(sorted([second, *take_all(ledger)], key=lambda u: u.position)) == rows_of(
        take_all(make_ledger(epochs=2))
    )
    assert ledger.num_undone == 0


def test_unit_in_progress_at_a_state_and_still_at_a_loss_is_repeated_once():
    ledger = make_ledger()
    unit = begin(ledger)
    state = ledger.state()
    assert ledger.go_back(state, in_part=True) == ([], 1)
    assert ledger.go_back(state, in_part=True) == ([], 1)  # before it is attempted again
    assert begin(ledger) == unit
    assert (ledger.num_attempts, ledger.num_repeated) == (2, 1)


def test_what_was_repeated_before_a_loss_stays_counted_where_servers_stay():
    ledger = make_ledger()
    state = ledger.state()
    unit = begin(ledger)
    ledger.begin(unit)  # its worker died
    ledger.done(unit)
    assert ledger.go_back(state, in_part=True) == ([unit], 0)
    assert begin(ledger) == unit
    assert (ledger.num_attempts, ledger.num_repeated) == (3, 1)
    assert ledger.go_back(state, in_part=False) == ([], 0)
    assert (ledger.num_attempts, ledger.num_repeated) == (0, 0)


def test_units_since_a_state_are_done_again_and_not_in_doubt_if_all_servers_go_back():
    ledger = make_ledger()
    first, second = begin(ledger), begin(ledger)
    ledger.done(second)
    state = ledger.state()
    third = begin(ledger)
    for unit in (first, third):
        ledger.done(unit)
    assert ledger.go_back(state, in_part=False) == ([first, third], 1)
    assert (ledger.num_done, ledger.num_undone) == (1, 0)
    restored = make_ledger()
    restored.restore(state)
    assert ledger.state() == restored.state()
    assert take_all(ledger) == take_all(restored)


def test_attempts_are_counted_and_outlive_a_restore():
    ledger = make_ledger()
    a, b = begin(ledger), begin(ledger)
    ledger.begin(b)  # its worker died
    ledger.begin(b)
    assert ledger.num_repeated == 2
    ledger.done(a)
    state = ledger.state()
    assert (state["doing"], state["attempts"], state["num_attempts"]) == ([1], [3], 4)
    restored = make_ledger()
    restored.restore(state)
    assert restored.num_repeated == 3
    assert begin(restored) == b
    assert restored.state()["attempts"] == [4]
    assert restored.num_attempts == 5
    restored.done(b)
    restored.begin(b)  # a straggler's second attempt, begun too late
    assert restored.num_repeated == 4
    assert restored.state()["doing"] == []


def test_in_doubt_is_what_was_begun_since_and_not_done_then():
    ledger = make_ledger()
    units = [begin(ledger) for _ in range(4)]
    ledger.done(units[1])
    state = ledger.state()
    ledger.done(units[0])
    ledger.done(begin(ledger))
    ledger.begin(units[3])
    ledger.give_back(units[2])
    ledger.take()  # not begun
    doubt = ledger.partially_applied(state)
    assert doubt["doing"] == [0, 2, 3, 4]  # also what was given back
    assert doubt["attempts"] == [1, 1, 2, 1]
    assert doubt["repeated"] == 1  # unit 3's second attempt
    assert ledger.exhausted is False


def test_given_back_unit_is_counted_once_after_a_restore():
    ledger = make_ledger()
    ledger.give_back(begin(ledger))
    restored = make_ledger()
    restored.restore(ledger.state())
    assert restored.num_repeated == 1
    assert begin(restored).position == 0
    assert restored.num_repeated == 1


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_every_unit_is_done_once_whatever_happens(data):
    """Takes, completes, gives back and restores at will; then finishes."""
    ledger = make_ledger(epochs=2)
    done: set[int] = set()
    saved = (ledger.state(), set(done))
    doing: list[Unit] = []
    for _ in range(data.draw(st.integers(0, 60))):
        action = data.draw(
            st.sampled_from(["take", "take", "done", "done", "back", "save", "kill"])
        )
        if action == "take":
            unit = begin(ledger)
            if unit is not None:
                assert unit.position not in done | {u.position for u in doing}
                doing.append(unit)
        elif action in ("done", "back") and doing:
            unit = doing.pop(data.draw(st.integers(0, len(doing) - 1)))
            if action == "done":
                ledger.done(unit)
                done.add(unit.position)
            else:
                ledger.give_back(unit)
        elif action == "save":
            saved = (ledger.state(), set(done))
        elif action == "kill":
            ledger = make_ledger(epochs=2)
            ledger.restore(saved[0])
            done, doing = set(saved[1]), []
        assert ledger.num_done == len(done)
        assert ledger.finished == (len(done) == ledger.num_units)
    for unit in doing:
        ledger.done(unit)
        done.add(unit.position)
    rest = [u.position for u in take_all(ledger)]
    assert len(rest) == len(set(rest))
    assert done.isdisjoint(rest)
    assert done | set(rest) == set(range(ledger.num_units))
    assert ledger.finished
    assert ledger.state()["prefix"] == ledger.num_units
    assert ledger.state()["beyond"] == []


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_state_after_a_restore_is_the_state(data):
    ledger = make_ledger(epochs=2)
    units = [begin(ledger) for _ in range(data.draw(st.integers(0, 20)))]
    for unit in data.draw(st.permutations(units)):
        if data.draw(st.booleans()):
            ledger.done(unit)
    state = ledger.state()
    restored = make_ledger(epochs=2)
    restored.restore(state)
    again = restored.state()
    assert again == state | {
        "doing": [],
        "attempts": [],
        "repeated": len(state["doing"]),
    }
    assert restored.steps_done() == ledger.steps_done()


def test_steps_and_rows_done_do_not_depend_on_the_order():
    ledger = make_ledger(epochs=2, batch_rows=7)
    units = [ledger.take() for _ in range(ledger.num_units)]
    steps = rows = 0
    for unit in reversed(units):
        ledger.done(unit)
        steps += -(-unit.num_rows // 7)
        rows += unit.num_rows
        assert (ledger.steps_done(), ledger.rows_done()) == (steps, rows)


# ---- stages ----------------------------------------------------------------------------------


def stored(ledger):
    """A ledger's state as a manifest gives it back."""
    state = json.loads(json.dumps(ledger.state()))
    check_ledger(state, Path("m"))
    return state


def test_other_data_begins_a_stage_after_all_steps_that_may_have_been_taken():
    ledger = make_ledger()
    units = [begin(ledger) for _ in range(4)]
    ledger.done(units[0])
    state = stored(ledger)
    state |= ledger.partially_applied(state)
    again = make_ledger()  # a run that was killed once more, before it came as far
    again.restore(state)
    again.done(begin(again))
    state = stored(again)
    last = units[3].first_step + -(-units[3].num_rows // 10)
    other = make_listed([(50, 60)], directory="/next")
    after = make_ledger(other, epochs=2)
    after.restore(state)
    visited = units[0].num_rows + units[1].num_rows
    (line,) = after.changes
    assert f"from step {last} on; not visited of /data: {again.num_rows - visited:,} rows" in line
    assert (after.num_done, after.steps_done(), after.rows_done()) == (0, last, visited)
    assert after.history == [
        {
            "data": "/data",
            "dataset": state["dataset"],
            "rows": again.num_rows,
            "visited_rows": visited,
            "steps": again.steps_done(),
            "first_step": 0,
        }
    ]
    fresh = take_all(make_ledger(other, epochs=2))
    rest = take_all(after)
    assert rest == [dataclasses.replace(u, first_step=last + u.first_step) for u in fresh]
    assert after.finished
    assert after.rows_done() == visited + 2 * 110
    third = make_ledger()  # the first data once more is a stage too
    third.restore(stored(after))
    assert "not visited of /next: nothing" in third.changes[0]
    assert [each["data"] for each in third.history] == ["/data", "/next"]
    assert third.take().first_step == after.steps_done()
    resumed = make_ledger()
    resumed.restore(stored(third))
    assert (resumed.history, resumed.changes) == (third.history, ())
    assert resumed.is_of(third.state())
    assert not resumed.is_of(state)


def test_state_of_an_earlier_version_leaves_enough_step_numbers():
    ledger = make_ledger()
    for _ in range(3):
        begin(ledger)
    state = stored(ledger)
    used = state.pop("end_step")
    del state["visited"], state["data"]
    after = make_ledger(make_listed([(50, 60)]))
    after.restore(state)
    assert after.first_step >= used
    assert after.history[0]["visited_rows"] == 0


def test_step_numbers_end_before_those_that_a_row_can_store():
    state = stored(make_ledger()) | {"end_step": 2**32 - 5}
    with pytest.raises(UsageError, match=r"fewer than 2\^32 steps .* after 4294967291 of earlier"):
        make_ledger(make_listed([(50, 60)])).restore(state)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"batch_rows": 11}, "^batch_size is 11, the checkpoint has {batch_size}: this"),
        ({"unit_rows": 99}, "^unit_rows is 99, the checkpoint has {unit_rows}: this"),
        ({"seed": 1}, "^seed is 1, the checkpoint has {seed}: this"),
        ({"shuffle": False}, "^shuffle is False, the checkpoint has True: this"),
        (
            {"seed": 1, "batch_rows": 11},
            "^batch_size is 11, .* has {batch_size}; seed is 1, the checkpoint has {seed}: this",
        ),
    ],
    ids=["batch", "unit", "seed", "shuffle", "two"],
)
def test_other_units_hold_from_the_next_epoch_on(other, text):
    ledger = make_ledger(epochs=3)
    done = [begin(ledger) for _ in range(ledger.units_per_epoch + 5)]
    for unit in done[:-2]:
        ledger.done(unit)
    state = stored(ledger)
    after = make_ledger(epochs=3, **other)
    after.restore(state)
    assert re.match(text.format(**state["made_of"]), after.changes[0])
    left = [u for u in take_all(make_ledger(epochs=2)) if u not in done[:-2]]
    assert after.rows_done() == sum(u.num_rows for u in done[:-2])
    assert after.num_repeated == 2
    rest = take_all(after)
    assert [(u.path, u.first_row, u.num_rows) for u in rest[: len(left)]] == [
        (u.path, u.first_row, u.num_rows) for u in left
    ]
    third = take_all(make_ledger(epochs=3, **other))[-after.units_per_epoch :]
    assert [(u.path, u.first_row, u.num_rows) for u in rest[len(left) :]] == [
        (u.path, u.first_row, u.num_rows) for u in third
    ]
    assert after.finished
    assert after.num_rows == after.rows_done()
    steps = [u.first_step for u in rest]
    assert steps == sorted(steps)
    assert steps[0] >= done[-1].first_step + -(-done[-1].num_rows // 10)


def test_state_without_options_is_refused_with_other_units():
    state = stored(make_ledger())
    del state["made_of"]  # as earlier versions wrote it
    with pytest.raises(UsageError, match="on other data, or with another batch_size, unit_rows"):
        make_ledger(seed=1).restore(state)
    make_ledger().restore(state)


def test_a_schedule_goes_on_with_other_units():
    ledger = make_ledger(epochs=2)
    for _ in range(ledger.units_per_epoch + 3):
        ledger.done(begin(ledger))
    share = ledger.rows_done() / ledger.num_rows
    after = make_ledger(epochs=2, unit_rows=50)
    after.restore(stored(ledger))
    units = [after.take() for _ in range(after.num_units)]
    shares = [after.share_at(u) for u in units]
    assert shares == sorted(shares)
    assert share < shares[0] < share + 0.1
    assert 0.95 < shares[-1] < 1
    assert [after.epoch_at(u.position) for u in units] == [(0, len(units))] * len(units)


def test_corrupt_stage_is_named():
    ledger = make_ledger()
    ledger.done(begin(ledger))
    after = make_ledger(seed=1)
    after.restore(stored(ledger))
    state = stored(after)
    state["stage"]["before"]["dataset"] = "0"
    with pytest.raises(CorruptCheckpointError, match=r"stage\.before must be of the rows"):
        make_ledger(seed=1).restore(state)
    wrong: list[Any] = [[], {"first_step": 2**32}, {"history": [3]}, {"before": {}}]
    for stage in wrong:
        with pytest.raises(CorruptCheckpointError, match=r"'ledger\.stage': expected"):
            check_ledger(state | {"stage": stage}, Path("m"))


def note(ledger, units, taken):
    """Notes which unit takes each step, which is the same one in each attempt."""
    for unit in units:
        what = (unit.path, unit.first_row, ledger.first_step)
        for k in range(-(-unit.num_rows // ledger.batch_rows)):
            assert taken.setdefault(unit.first_step + k, what) == what


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_every_row_is_visited_once_an_epoch_over_kills_and_changes(data):
    """Days of other data, units of other kinds, and kills; step numbers never come again."""
    visits: collections.Counter = collections.Counter()
    taken: dict[int, tuple] = {}  # steps of units that were done or are partly in the rows
    state: Any = None
    saved: Any = (collections.Counter(), {})
    for day in range(3):
        dataset = make_listed(data.draw(row_groups), checksum=1000 * day, directory=f"/{day}")
        epochs = data.draw(st.integers(1, 3))
        for _ in range(data.draw(st.integers(1, 4))):
            ledger = make_ledger(
                dataset,
                epochs=epochs,
                batch_rows=data.draw(st.integers(1, 30)),
                unit_rows=data.draw(st.integers(30, 120)),
                seed=data.draw(st.integers(0, 1)),
            )
            if state is not None:
                ledger.restore(state)
            visits, taken = saved[0].copy(), dict(saved[1])
            for _ in range(data.draw(st.integers(0, 25))):
                unit = begin(ledger)
                if unit is None:
                    break
                note(ledger, [unit], taken)
                if data.draw(st.integers(0, 3)):
                    ledger.done(unit)
                    visits.update(rows_of([unit]))
                if data.draw(st.booleans()):
                    state, saved = stored(ledger), (visits.copy(), dict(taken))
        ledger = make_ledger(dataset, epochs=epochs)
        if state is not None:
            ledger.restore(state)
        visits, taken = saved[0].copy(), dict(saved[1])
        rest = take_all(ledger)
        note(ledger, rest, taken)
        visits.update(rows_of(rest))
        assert ledger.finished
        expected = dict.fromkeys(
            ((str(dataset.absolute_path(f)), row) for f in dataset.split("train").files
             for row in range(f.rows)), epochs
        )  # fmt: skip
        assert {key: n for key, n in visits.items() if key[0].startswith(f"/{day}/")} == expected
        assert ledger.rows_done() == sum(visits.values())
        state, saved = stored(ledger), (visits.copy(), dict(taken))


def test_moved_dataset_goes_on():
    ledger = make_ledger(make_listed(directory="/elsewhere"))
    ledger.restore(make_ledger().state())
    assert ledger.take().path.startswith("/elsewhere/train/")


def test_more_epochs_go_on_where_fewer_ended():
    ledger = make_ledger(epochs=1)
    take_all(ledger)
    assert ledger.finished
    more = make_ledger(epochs=3)
    more.restore(ledger.state())
    assert not more.finished
    straight = take_all(make_ledger(epochs=3))
    assert take_all(more) == straight[ledger.num_units :]


def test_fewer_epochs_than_were_done_leave_nothing_to_do():
    ledger = make_ledger(epochs=3)
    take_all(ledger)
    fewer = make_ledger(epochs=1)
    fewer.restore(ledger.state())
    assert fewer.finished
    assert fewer.take() is None


@pytest.mark.parametrize(("batch", "unit"), [(0, 10), (10, 9), (-1, 5)])
def test_unit_must_hold_a_batch(batch, unit):
    with pytest.raises(UsageError, match=f"unit_rows={unit} and batch_rows={batch}"):
        LedgerOptions(batch_rows=batch, unit_rows=unit)


def test_epochs_and_rows_must_be_there():
    with pytest.raises(UsageError, match="epochs must be at least 1 but got 0"):
        make_ledger(epochs=0)
    with pytest.raises(UsageError, match=r"fewer than 2\^32 steps but 2147483647 epochs of"):
        make_ledger(epochs=2**31 - 1)
    empty = dataclasses.replace(
        make_listed(), splits={"train": Split(rows=0, positives=0, files=())}
    )
    with pytest.raises(UsageError, match="split 'train' has no rows"):
        make_ledger(empty)
