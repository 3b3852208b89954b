"""Retention: which manifests stay, and the removal of what nothing needs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from embedps import constants
from embedps.checkpoint.chain import position_of, shortest_path
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.lease import read_clock, read_leases, release_lease
from embedps.checkpoint.refs import read_refs
from embedps.errors import CheckpointError, CorruptCheckpointError, UsageError
from embedps.score_names import merit
from embedps.storage import file_io

_REMOVED_SUFFIX = ".removed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectResult:
    """What a garbage collection removed.

    Attributes:
      manifests: their numbers.
      directories: the names of the saves' directories.
      bytes: the sum of the removed files' sizes.
    """

    manifests: tuple[int, ...]
    directories: tuple[str, ...]
    bytes: int


class KeepPolicy:
    """Selects the manifests that stay. A manifest stays if one of several policies selects it."""

    def select(self, manifests: Mapping[int, Manifest], now: float) -> set[int]:
        """Returns the numbers of the manifests to keep.

        Args:
          manifests: all readable manifests, by number.
          now: seconds since the epoch.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class KeepNewest(KeepPolicy):
    """Keeps the newest `count` manifests."""

    count: int = 2

    def select(self, manifests: Mapping[int, Manifest], now: float) -> set[int]:
        return set(sorted(manifests)[-self.count :]) if self.count else set()


@dataclasses.dataclass(frozen=True)
class KeepChains(KeepPolicy):
    """Keeps the last manifest of each of the newest `count` chains."""

    count: int = 1

    def select(self, manifests: Mapping[int, Manifest], now: float) -> set[int]:
        last = _last_of_chains(manifests)
        return {last[base] for base in sorted(last)[max(0, len(last) - self.count) :]}


@dataclasses.dataclass(frozen=True)
class KeepRecent(KeepPolicy):
    """Keeps the manifests committed in the last `secs` seconds."""

    secs: float

    def select(self, manifests: Mapping[int, Manifest], now: float) -> set[int]:
        return {n for n, manifest in manifests.items() if now - manifest.wall_time <= self.secs}


@dataclasses.dataclass(frozen=True)
class KeepEvery(KeepPolicy):
    """Keeps the first manifest of each period of `hours`, counted from the epoch."""

    hours: float

    def select(self, manifests: Mapping[int, Manifest], now: float) -> set[int]:
        first: dict[float, int] = {}
        for number in sorted(manifests):
            period = manifests[number].wall_time // (3600 * self.hours)
            first.setdefault(period, number)
        return set(first.values())


@dataclasses.dataclass(frozen=True)
class KeepBest(KeepPolicy):
    """Keeps the `count` manifests with the best scores.

    Attributes:
      count: how many to keep.
      read_scores: returns all evaluations so far. Each maps "number" to a manifest's number, and
        a metric's name to its value.
      metric: the score's name; `embedps.score_names.merit` says which way it is better.
    """

    count: int
    read_scores: Callable[[], Iterable[Mapping[str, Any]]]
    metric: str = "auc"

    def select(self, manifests: Mapping[int, Manifest], now: float) -> set[int]:
        scores = {}
        for evaluation in self.read_scores():
            score = evaluation.get(self.metric)
            if evaluation.get("number") in manifests and isinstance(score, int | float):
                scores[evaluation["number"]] = merit(self.metric, score)
        return set(sorted(scores, key=lambda n: (scores[n], n), reverse=True)[: self.count])


DEFAULT_KEEP: tuple[KeepPolicy, ...] = (KeepNewest(2), KeepChains(1))


def collect_garbage(
    directory: CheckpointDirectory,
    keep: Sequence[KeepPolicy] = DEFAULT_KEEP,
    *,
    under_way: Collection[str] = (),
    now: float | None = None,
) -> CollectResult:
    """Removes the manifests and saves that nothing needs, and the files of failed commits.

    These manifests stay: the newest one, those that a policy keeps or a ref names, those under a
    live lease, and those through which the holder of the lease reaches the newest one. A save whose
    number is above the newest committed save's may still be written, so it stays too. Call this
    inside `directory.exclusive()`.

    Args:
      keep: policies; at least one.
      under_way: the directories of other saves that are still written; they stay.
      now: seconds since the epoch; if not given, the clock's time for the policies and the store's
        for the leases.

    Raises:
      UsageError: there is no policy.
      CorruptCheckpointError: the newest manifest, a lease or a ref cannot be read. Nothing was
        removed.
    """
    if not keep:
        raise UsageError("collect_garbage must get a policy that says what to keep")
    try:
        return _collect(directory, keep, under_way, now)
    except OSError as error:
        raise CheckpointError(f"cannot collect garbage in {directory.path}: {error}") from error


def _collect(
    directory: CheckpointDirectory,
    policies: Sequence[KeepPolicy],
    under_way: Collection[str],
    given_now: float | None,
) -> CollectResult:
    _restore_set_aside(directory)
    manifests = _readable(directory)
    if not manifests:
        return CollectResult(manifests=(), directories=(), bytes=0)
    now = time.time() if given_now is None else given_now
    keep = {max(manifests)}.union(*(policy.select(manifests, now) for policy in policies))
    now = read_clock(directory) if given_now is None else given_now
    keep |= _needed(directory, manifests, now)
    removed = _remove_manifests(directory, manifests, keep, now)
    kept = [manifests[n] for n in manifests if n not in removed]
    directories, num_bytes = _remove_saves(directory, kept, under_way)
    _remove_expired_leases(directory, now)
    return CollectResult(manifests=tuple(removed), directories=tuple(directories), bytes=num_bytes)


def _last_of_chains(manifests: Mapping[int, Manifest]) -> dict[int, int]:
    """Maps the number of each chain's base to the chain's last manifest."""
    return {manifests[n].base_number: n for n in sorted(manifests)}


def _restore_set_aside(directory: CheckpointDirectory) -> None:
    """Undoes a removal that a kill interrupted: a lease may protect the manifest."""
    for path in directory.manifests_dir.glob(f"*{_REMOVED_SUFFIX}"):
        file_io.rename(path, path.with_suffix(".json"))


def _readable(directory: CheckpointDirectory) -> dict[int, Manifest]:
    """Reads all manifests but corrupt ones; the newest must be readable."""
    numbers = directory.numbers()
    manifests: dict[int, Manifest] = {}
    for number in numbers:
        try:
            manifests[number] = directory.read(number)
        except CorruptCheckpointError:
            if number == numbers[-1]:
                raise
    return manifests


def _needed(
    directory: CheckpointDirectory, manifests: Mapping[int, Manifest], now: float
) -> set[int]:
    """Returns the manifests that refs name, those leased, and their readers' way to the newest."""
    named = {ref.number for ref in read_refs(directory) if ref.number is not None}
    leased = {lease.number for lease in read_leases(directory) if lease.is_live(now)}
    ahead = (
        shortest_path(manifests.values(), position_of(manifests[n]))
        for n in leased & manifests.keys()
    )
    return named.union(leased, (manifest.number for path in ahead for manifest in path))


def _remove_manifests(
    directory: CheckpointDirectory,
    manifests: Mapping[int, Manifest],
    keep: Collection[int],
    now: float,
) -> list[int]:
    """Removes all manifests but those to keep.

    Manifests are removed before their files. So after a kill, no manifest names a removed file.
    """
    going = [number for number in directory.numbers() if number not in keep]
    aside = {n: directory.manifest_path(n).with_suffix(_REMOVED_SUFFIX) for n in going}
    for number, path in aside.items():
        file_io.rename(directory.manifest_path(number), path)
    # A reader that leased one of them before its rename, or a ref, is seen here. Who comes later
    # finds that the manifest is gone.
    for number in _needed(directory, manifests, now) & aside.keys():
        file_io.rename(aside.pop(number), directory.manifest_path(number))
    for path in aside.values():
        file_io.unlink(path)
    for path in directory.manifests_dir.glob(f"*{constants.TEMPORARY_SUFFIX}"):
        file_io.unlink(path)
    file_io.store_of(directory.manifests_dir).sync_directory(directory.manifests_dir)
    return sorted(aside)


def _remove_saves(
    directory: CheckpointDirectory, kept: Collection[Manifest], under_way: Collection[str]
) -> tuple[list[str], int]:
    needed = {file.directory for manifest in kept for file in manifest.files}.union(under_way)
    newest = max(manifest.save_number for manifest in kept)
    removed = []
    num_bytes = 0
    for number, path in directory.save_directories():
        if number <= newest and path.name not in needed:
            num_bytes += file_io.store_of(path).remove_directory(path)
            removed.append(path.name)
    file_io.store_of(directory.path).sync_directory(directory.path)
    return removed, num_bytes


def _remove_expired_leases(directory: CheckpointDirectory, now: float) -> None:
    for lease in read_leases(directory):
        if not lease.is_live(now):
            release_lease(directory, lease.name)
