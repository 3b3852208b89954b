"""Leases, keep policies and the garbage collector: needed files stay, also in races and kills."""

import dataclasses
import json
import os
import shutil

import pytest

from embedps.checkpoint import retention
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest_json import to_json
from embedps.checkpoint.lease import (
    Lease,
    LeaseRenewer,
    lease_latest,
    read_leases,
    release_lease,
    write_lease,
)
from embedps.checkpoint.retention import (
    KeepBest,
    KeepChains,
    KeepEvery,
    KeepNewest,
    KeepRecent,
    collect_garbage,
)
from embedps.errors import CheckpointError, CorruptCheckpointError, UsageError
from embedps.run.summary import read_evaluations
from tests.checkpoint.builders import CheckpointRun, Record

NOW = 1_000_000.0


def rows(number: int) -> list[Record]:
    return [Record("C1", i, float(number)) for i in range(4)]


def make_chains(path, *lengths: int) -> CheckpointDirectory:
    """Chains of so many manifests each; numbers run on from 1."""
    run = CheckpointRun(path)
    for length in lengths:
        run.base(rows(0))
        for _ in range(length - 1):
            run.delta(rows(1))
    return run.directory


def saves(directory: CheckpointDirectory) -> set[str]:
    return {path.name for _, path in directory.save_directories()}


def lease_at_now(directory: CheckpointDirectory, name: str, number: int) -> Lease:
    """Leases for 60 s from NOW on, by the reader's clock and by the store's."""
    lease = write_lease(directory, name, number, expire_secs=60, now=NOW)
    os.utime(directory.leases_dir / f"{name}.json", (NOW, NOW))
    return lease


def check_all_present(directory: CheckpointDirectory) -> None:
    for number in directory.numbers():
        directory.check_present(directory.read(number))


def test_old_chain_goes_once_nothing_needs_it(tmp_path):
    directory = make_chains(tmp_path, 3, 2)
    old = ["base-1", "delta-2", "delta-3", "dense-1", "dense-2", "dense-3"]
    size = sum(f.stat().st_size for name in old for f in (tmp_path / name).rglob("*.arrow"))
    collected = collect_garbage(directory, now=NOW)
    assert collected.manifests == (1, 2, 3)
    assert sorted(collected.directories) == old
    assert collected.bytes == size > 0
    assert directory.numbers() == [4, 5]
    assert saves(directory) == {"base-4", "delta-5", "dense-4", "dense-5"}
    check_all_present(directory)
    assert collect_garbage(directory, now=NOW).directories == ()


def test_previous_manifest_stays_across_a_new_base(tmp_path):
    directory = make_chains(tmp_path, 3, 1)
    collect_garbage(directory, now=NOW)
    assert directory.numbers() == [3, 4]
    assert saves(directory) == {"base-1", "delta-2", "delta-3", "dense-3", "base-4", "dense-4"}
    check_all_present(directory)


@pytest.mark.parametrize(
    ("keep_manifests", "keep_chains", "left"),
    [
        (1, 1, [6]),
        (1, 0, [6]),
        (2, 1, [5, 6]),
        (1, 2, [5, 6]),
        (1, 3, [2, 5, 6]),
        (1, 4, [2, 5, 6]),
        (1, 99, [2, 5, 6]),
        (9, 1, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_kept_are_the_newest_and_the_last_of_chains(tmp_path, keep_manifests, keep_chains, left):
    directory = make_chains(tmp_path, 2, 3, 1)
    collect_garbage(directory, [KeepNewest(keep_manifests), KeepChains(keep_chains)], now=NOW)
    assert directory.numbers() == left
    check_all_present(directory)


def test_leased_manifest_and_what_leads_on_from_it_stay_until_the_lease_ends(tmp_path):
    directory = make_chains(tmp_path, 2, 1, 1)
    lease_at_now(directory, "evaluator", 1)
    collect_garbage(directory, [KeepNewest(1), KeepChains(1)], now=NOW + 59)
    assert directory.numbers() == [1, 2, 4]
    old = {"base-1", "dense-1", "delta-2", "dense-2"}
    assert saves(directory) == old | {"base-4", "dense-4"}
    check_all_present(directory)

    collect_garbage(directory, [KeepNewest(1), KeepChains(1)], now=NOW + 60)
    assert directory.numbers() == [4]
    assert read_leases(directory) == []


def test_released_lease_holds_nothing(tmp_path):
    directory = make_chains(tmp_path, 1, 1)
    lease_at_now(directory, "evaluator", 1)
    release_lease(directory, "evaluator")
    release_lease(directory, "evaluator")
    collect_garbage(directory, [KeepNewest(1), KeepChains(1)], now=NOW)
    assert directory.numbers() == [2]


def test_lease_says_who_holds_it(tmp_path):
    directory = make_chains(tmp_path, 1)
    lease = write_lease(directory, "eval-0", 1, expire_secs=5, holder="sidecar", now=NOW)
    os.utime(directory.leases_dir / "eval-0.json", (NOW, NOW))
    assert read_leases(directory) == [lease]
    assert (lease.holder, lease.pid, lease.number) == ("sidecar", os.getpid(), 1)
    assert (lease.acquired_at, lease.expires_at) == (NOW, NOW + 5)
    assert lease.is_live(NOW + 4.9)
    assert not lease.is_live(NOW + 5)
    for name in ("../x", "", "a/b", ".hidden"):
        with pytest.raises(CheckpointError, match="a lease's name must be a plain file name"):
            write_lease(directory, name, 1, expire_secs=5)


def test_lease_latest_gives_the_newest_manifest(tmp_path):
    assert lease_latest(CheckpointDirectory(tmp_path), "e", expire_secs=5) is None
    directory = make_chains(tmp_path, 2)
    taken = lease_latest(directory, "e", expire_secs=5, now=NOW)
    assert taken is not None
    manifest, lease = taken
    assert manifest == directory.read(2)
    assert lease.number == 2


def test_lease_latest_looks_again_if_its_manifest_went_before_the_lease(tmp_path, monkeypatch):
    directory = make_chains(tmp_path, 1, 1)
    newest = directory.latest
    answers = [directory.read(1)]  # what a slow reader found, before the collector came by
    monkeypatch.setattr(directory, "latest", lambda: answers.pop() if answers else newest())
    collect_garbage(CheckpointDirectory(tmp_path), [KeepNewest(1), KeepChains(1)], now=NOW)
    taken = lease_latest(directory, "e", expire_secs=5, now=NOW)
    assert taken is not None
    assert taken[0].number == taken[1].number == 2


def test_lease_taken_while_manifests_go_brings_its_manifest_back(tmp_path, monkeypatch):
    """The reader saw the manifest after the collector read the leases."""
    directory = make_chains(tmp_path, 2, 1)
    before = directory.read(2)
    find = retention._needed
    calls: list[int] = []

    def lease_in_between(*args):
        found = find(*args)
        if not calls:
            lease_at_now(directory, "e", 2)
        calls.append(1)
        return found

    monkeypatch.setattr(retention, "_needed", lease_in_between)
    collected = collect_garbage(directory, [KeepNewest(1), KeepChains(1)], now=NOW)
    assert collected.manifests == (1,)
    assert directory.numbers() == [2, 3]
    assert directory.read(2) == before
    check_all_present(directory)


def test_kill_while_manifests_are_set_aside_loses_no_leased_one(tmp_path):
    directory = make_chains(tmp_path, 1, 1)
    lease_at_now(directory, "e", 1)
    path = directory.manifest_path(1)
    path.rename(path.with_suffix(".removed"))
    assert directory.numbers() == [2]
    collect_garbage(directory, [KeepNewest(1), KeepChains(1)], now=NOW)
    assert directory.numbers() == [1, 2]
    check_all_present(directory)


def test_kill_after_the_manifests_leaves_saves_that_the_next_collection_takes(
    tmp_path, monkeypatch
):
    directory = make_chains(tmp_path, 2, 1)
    with monkeypatch.context() as patch:
        patch.setattr(retention, "_remove_saves", killed)
        with pytest.raises(KeyboardInterrupt):
            collect_garbage(directory, [KeepNewest(1), KeepChains(1)], now=NOW)
    assert directory.numbers() == [3]
    check_all_present(directory)
    assert "base-1" in saves(directory)
    collect_garbage(directory, [KeepNewest(1), KeepChains(1)], now=NOW)
    assert saves(directory) == {"base-3", "dense-3"}


def killed(*_):
    raise KeyboardInterrupt


def test_leftovers_of_failed_commits_go_but_a_save_under_way_stays(tmp_path):
    run = CheckpointRun(tmp_path)
    run.base(rows(0))
    failed = tmp_path / "delta-2" / "dim2" / "shard-0-of-2.arrow.tmp"
    failed.parent.mkdir(parents=True)
    failed.write_bytes(bytes(123))
    run.delta(rows(1))  # 3: it skips the number of what failed
    torn = run.directory.manifests_dir / "00000004.json.tmp"
    torn.write_bytes(b"{")
    under_way = tmp_path / "delta-4" / "dim2"
    under_way.mkdir(parents=True)
    collected = collect_garbage(run.directory, now=NOW)
    assert collected.directories == ("delta-2",)
    assert collected.bytes == 123
    assert saves(run.directory) == {"base-1", "dense-1", "delta-3", "dense-3", "delta-4"}
    assert not torn.exists()
    check_all_present(run.directory)


def test_corrupt_newest_manifest_stops_the_collection(tmp_path):
    directory = make_chains(tmp_path, 1, 1, 1)
    path = directory.manifest_path(3)
    path.write_bytes(path.read_bytes()[:-9])
    before = saves(directory)
    with pytest.raises(CorruptCheckpointError, match=r"00000003\.json"):
        collect_garbage(directory, now=NOW)
    assert saves(directory) == before
    assert directory.numbers() == [1, 2, 3]


def test_corrupt_lease_stops_the_collection(tmp_path):
    directory = make_chains(tmp_path, 1, 1)
    lease = lease_at_now(directory, "e", 1)
    path = directory.leases_dir / "e.json"
    for content in (b"{", json.dumps({**dataclasses.asdict(lease), "x": 1}).encode()):
        path.write_bytes(content)
        with pytest.raises(CorruptCheckpointError, match=r"e\.json: must be a lease"):
            collect_garbage(directory, [KeepNewest(1), KeepChains(1)], now=NOW)
        assert directory.numbers() == [1, 2]


def test_corrupt_old_manifest_does_not_stop_it(tmp_path):
    directory = make_chains(tmp_path, 1, 1, 1)
    directory.manifest_path(1).write_bytes(b"")
    assert collect_garbage(directory, [KeepNewest(2), KeepChains(1)], now=NOW).manifests == (1,)
    check_all_present(directory)


def test_empty_directory_has_nothing_to_collect(tmp_path):
    collected = collect_garbage(CheckpointDirectory(tmp_path), now=NOW)
    assert (collected.manifests, collected.directories, collected.bytes) == ((), (), 0)
    with pytest.raises(UsageError, match="a policy that says what to keep"):
        collect_garbage(CheckpointDirectory(tmp_path), [])


def test_what_cannot_be_removed_is_named(tmp_path, monkeypatch):
    directory = make_chains(tmp_path, 1, 1)

    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(CheckpointError, match=r"cannot collect garbage in .*Permission denied"):
        collect_garbage(directory, [KeepNewest(1), KeepChains(1)], now=NOW)


def kept(path, policies, *, hours=(), scores=None, now=0.0):
    run = CheckpointRun(path)
    for i, hour in enumerate(hours):
        run.base([Record("C1", 1, float(i))])
        number = i + 1
        manifest = run.directory.read(number)
        aged = dataclasses.replace(manifest, wall_time=3600.0 * hour)
        run.directory.manifest_path(number).write_bytes(to_json(aged))
    same = {"step": 1, "examples": 1}
    lines = [json.dumps({**same, "number": n, "auc": auc}) for n, auc in (scores or {}).items()]
    (path / "evaluation.jsonl").write_text("\n".join([*lines, '{"number": 1, "au']))
    collect_garbage(run.directory, policies, now=3600.0 * now)
    return run.directory.numbers()


HOURS = (0.5, 1.1, 1.9, 3.0, 3.5, 5.2)


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ([KeepNewest(1)], [6]),
        ([KeepChains(2)], [5, 6]),
        ([KeepRecent(3600 * 2.6)], [4, 5, 6]),
        ([KeepEvery(1.0)], [1, 2, 4, 6]),
        ([KeepEvery(3.0)], [1, 4, 6]),
        ([KeepNewest(1), KeepEvery(3.0), KeepRecent(3600 * 2.1)], [1, 4, 5, 6]),
    ],
)
def test_policies_say_together_what_stays(tmp_path, policies, expected):
    assert kept(tmp_path, policies, hours=HOURS, now=5.5) == expected


def test_best_by_evaluation_stays(tmp_path):
    scores = {1: 0.7, 2: 0.9, 3: None, 4: 0.8, 5: 0.6, 9: 1.0}
    policy = KeepBest(2, lambda: read_evaluations(tmp_path))
    assert kept(tmp_path, [policy], hours=HOURS, scores=scores) == [2, 4, 6]


def test_newest_stays_whatever_the_policies_say(tmp_path):
    assert kept(tmp_path, [KeepRecent(1)], hours=HOURS, now=100) == [6]


def test_leased_stays_whatever_the_policies_say(tmp_path):
    run = CheckpointRun(tmp_path)
    for i in range(4):
        run.base([Record("C1", 1, float(i))])
    with LeaseRenewer(run.directory, "reader", expire_secs=60, holder="reader") as lease:
        assert lease.take(2) is not None
        collect_garbage(run.directory, [KeepNewest(1)])
        assert run.directory.numbers() == [2, 4]
    collect_garbage(run.directory, [KeepNewest(1)])
    assert run.directory.numbers() == [4]
