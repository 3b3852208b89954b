"""Following: every change once and in order, from any position, across bases and compactions."""

import dataclasses
import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.checkpoint import Reached, Reset, Rows, follow
from embedps.checkpoint.chain import Position, continuation, position_of, shortest_path
from embedps.checkpoint.follow import Follower
from embedps.checkpoint.format.manifest import SaveSet
from embedps.checkpoint.format.manifest_json import to_json
from embedps.checkpoint.lease import read_leases
from embedps.checkpoint.retention import KeepNewest, collect_garbage
from embedps.checkpoint.tools.compact import compact
from embedps.errors import CheckpointError, CorruptCheckpointError
from tests.checkpoint.builders import (
    CheckpointRun,
    Record,
    make_manifest,
    make_run,
    write_save,
)
from tests.checkpoint.readers import Cache, rows_of


def rebase(run: CheckpointRun, base: list[Record], delta: list[Record]) -> None:
    """A new base with a delta since the old chain, in one manifest, as the saver writes it."""
    since, number = run.chain[-1].number, run.directory.next_number()
    saves = [
        write_save(run.directory, "base", number, base),
        write_save(run.directory, "delta", number + 1, delta, since=since),
    ]
    run.chain = saves
    run.directory.commit(make_manifest(number + 1, saves))


def test_changes_come_in_order_once_with_their_positions(tmp_path):
    run = make_run(tmp_path)
    changes = list(follow(run.directory, idle_secs=0))
    assert [type(c).__name__ for c in changes if not isinstance(c, Rows)] == [
        "Reset",
        "Reached",
        "Reached",
        "Reached",
    ]
    reached = [c for c in changes if isinstance(c, Reached)]
    assert [(c.position.number, c.step, c.complete) for c in reached] == [
        (1, 100, False),
        (2, 200, False),
        (3, 300, True),
    ]
    saves = [c.save.number for c in changes if isinstance(c, Rows)]
    assert saves == sorted(saves)
    cache = Cache()
    for change in changes:
        cache.take(change)
    assert cache.rows == rows_of(run.directory)
    assert read_leases(run.directory) == []


def test_position_is_text_and_goes_on_after_it(tmp_path):
    run = make_run(tmp_path)
    cache = Cache()
    cache.catch_up(run.directory)
    run.delta([Record("C2", 9, 9.0), Record("C1", 0, None)])
    assert cache.position is not None
    cache.position = Position.from_json(cache.position.to_json())
    before = cache.batches
    cache.catch_up(run.directory)
    assert cache.batches - before == 2  # of two shards
    assert cache.resets == 1
    assert cache.rows == rows_of(run.directory)
    cache.catch_up(run.directory)
    assert cache.batches - before == 2
    for text in ("", "{}", "[1]", '{"history": "x", "number": "y"}'):
        with pytest.raises(CheckpointError, match=r"a text that Position.to_json wrote"):
            Position.from_json(text)


def test_killed_in_a_save_it_comes_again_from_the_position_before(tmp_path):
    run = make_run(tmp_path)
    cache = Cache()
    for count, change in enumerate(follow(run.directory, idle_secs=0)):
        cache.take(change)
        if count == 5:  # in delta 2
            break
    assert cache.position is not None
    assert cache.position.number == 1
    cache.catch_up(run.directory)
    assert cache.rows == rows_of(run.directory)
    assert cache.resets == 1


@pytest.mark.parametrize("pauses_at", [1, 2, 3])
def test_compaction_does_not_reset_who_is_behind_it(tmp_path, pauses_at):
    """A reader with its lease, that stopped before what was compacted."""
    run = make_run(tmp_path)
    steps = follow(run.directory, idle_secs=0)
    cache = Cache()
    while cache.position is None or cache.position.number < pauses_at:
        cache.take(next(steps))
    assert compact(run.directory) is not None
    collect_garbage(run.directory, [KeepNewest(1)])
    run.chain = list(run.directory.read(4).chain)
    run.delta([Record("C1", 50, 5.0)])
    collect_garbage(run.directory, [KeepNewest(1)])
    for change in steps:
        cache.take(change)
    assert cache.resets == 1
    assert cache.rows == rows_of(run.directory)
    assert cache.position == Position(history=run.directory.read(5).history, number=5)


def test_new_base_is_passed_by_its_delta(tmp_path):
    run = make_run(tmp_path)
    cache = Cache()
    cache.catch_up(run.directory)
    rows = [Record("C1", 1, 1.5), Record("C2", 6, 0.25)]
    gone = [Record("C1", i, None) for i in (0, *range(2, 8))]
    rebase(run, rows, [*gone, Record("C1", 1, 1.5), Record("C2", 7, 7.0)])
    cache.catch_up(run.directory)
    assert cache.resets == 1
    assert cache.rows == rows_of(run.directory)
    fresh = Cache()
    fresh.catch_up(run.directory)
    assert fresh.rows == cache.rows


def test_position_that_is_gone_resets_and_says_which(tmp_path):
    run = make_run(tmp_path)
    cache = Cache()
    cache.catch_up(run.directory)
    lost = cache.position
    run.base([Record("C1", 1, 1.0)])  # with no delta that leads to it
    collect_garbage(run.directory, [KeepNewest(1)])
    first = next(iter(follow(run.directory, lost, idle_secs=0)))
    assert first == Reset(lost=lost)
    cache.catch_up(run.directory)
    assert cache.resets == 2
    assert cache.rows == rows_of(run.directory)


def test_other_history_of_the_same_numbers_resets(tmp_path):
    cache = Cache()
    first = make_run(tmp_path / "first")
    cache.catch_up(first.directory)
    assert cache.position is not None
    cache.position = Position(history="f" * 16, number=cache.position.number)
    cache.catch_up(first.directory)
    assert cache.resets == 2


def test_newest_that_continues_is_taken_whatever_the_others_are(tmp_path):
    run = make_run(tmp_path)
    with Follower(run.directory, holder="reader") as follower:
        first = follower.next()
        assert first is not None
        follower.reached(first)
        other, newest = (run.delta([Record("C1", 1, value)]).number for value in (2.0, 3.0))
        path = run.directory.manifest_path(other)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))
        with pytest.raises(CheckpointError, match="version is 99"):
            run.directory.read(other)
        advance = follower.next()
        assert advance is not None
        assert (advance.manifest.number, advance.reset) == (newest, False)


def test_follower_waits_for_commits_and_ends_with_the_final_one(tmp_path):
    run = CheckpointRun(tmp_path)
    run.base([Record("C1", 1, 1.0)])
    cache, seen = Cache(), threading.Event()
    done: list[int] = []

    def read():
        for change in follow(str(tmp_path)):
            cache.take(change)
            if isinstance(change, Reached):
                done.append(change.position.number)
                seen.set()

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(3):
        assert seen.wait(60)
        seen.clear()
        assert [lease.holder for lease in read_leases(run.directory)] == ["follower"]
        if i < 2:
            run.delta([Record("C1", 10 + i, 1.0)])
    save = write_save(run.directory, "delta", 4, [Record("C1", 99, 9.0)], since=3)
    manifest = make_manifest(4, [*run.chain, save])
    run.directory.commit(dataclasses.replace(manifest, final=True))
    reader.join(60)
    assert not reader.is_alive()
    assert done == [1, 2, 3, 4]
    assert cache.rows == rows_of(run.directory)
    assert read_leases(run.directory) == []


def test_stop_ends_it(tmp_path):
    run = make_run(tmp_path)
    stop = threading.Event()
    for change in follow(run.directory, stop=stop):
        if isinstance(change, Reached) and change.complete:
            stop.set()
    assert read_leases(run.directory) == []


def test_damaged_file_is_named_before_its_rows_are_given(tmp_path):
    run = make_run(tmp_path)
    entry = run.directory.read(3).chain[1].files[0]
    data = bytearray(run.directory.file(entry).read_bytes())
    data[len(data) // 2] ^= 1
    run.directory.file(entry).write_bytes(data)
    cache = Cache()
    with pytest.raises(CorruptCheckpointError, match=entry.path):
        cache.catch_up(run.directory)
    assert cache.position is not None
    assert cache.position.number == 1


def test_closed_follower_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="must be open"):
        Follower(make_run(tmp_path).directory, holder="x").next()


# ---- the ways between positions, against sets of changes -----------------------------------------


def save_of(kind, number: int, since: int | None) -> SaveSet:
    return SaveSet(kind=kind, number=number, step=number, since=since, files=())


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_continuation_gives_every_change_and_only_where_it_can(data):
    """Rows as (the last save that touched each): a model of what a reader holds.

    Save n touches row n. A base-n holds rows up to n; a delta n since s holds rows s+1 to n.
    """
    chain = [save_of("base", data.draw(st.integers(1, 4)), None)]
    for _ in range(data.draw(st.integers(0, 4))):
        number = chain[-1].number + data.draw(st.integers(1, 3))
        chain.append(save_of("delta", number, data.draw(st.integers(0, chain[-1].number))))
    manifest = make_manifest(chain[-1].number, chain)
    position = Position(history=manifest.history, number=data.draw(st.integers(0, 20)))
    saves = continuation(manifest, position)
    held = set(range(1, position.number + 1))
    if saves is None:
        reaches = [
            s for s in chain if s.since is not None and s.since <= position.number < s.number
        ]
        assert position.number not in [s.number for s in chain]
        assert not reaches
    else:
        for save in saves:
            assert save.since is not None
            held |= set(range(save.since + 1, save.number + 1))
        assert held == set(range(1, manifest.save_number + 1))


def test_way_is_the_fewest_manifests_that_lead_on():
    old = [save_of("base", 1, None), save_of("delta", 2, 1), save_of("delta", 3, 2)]
    manifests = [make_manifest(n, old[:n]) for n in (1, 2, 3)]
    compacted = [save_of("base", 2, None), old[2], save_of("delta", 5, 3)]
    manifests.append(make_manifest(5, compacted))
    start = position_of(manifests[0])
    assert [m.number for m in shortest_path(manifests, start)] == [3, 5]
    assert shortest_path(manifests, position_of(manifests[3])) == []


def test_first_version_manifests_are_followed_too(tmp_path):
    """As numbers alone; a manifest's history is empty."""
    run = make_run(tmp_path)
    for number in run.directory.numbers():
        manifest = dataclasses.replace(run.directory.read(number), history="")
        run.directory.manifest_path(number).write_bytes(to_json(manifest))
    cache = Cache()
    cache.catch_up(run.directory)
    assert cache.rows == rows_of(run.directory)
    assert cache.position == Position(history="", number=3)
    assert np.isfinite(list(cache.rows.values())).all()
