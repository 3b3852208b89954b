"""What may go: the manifests and saves that no policy keeps and nobody leases."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from embedps.checkpoint.chain import position_of, way
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.lease import read_leases, release_lease
from embedps.errors import CheckpointError, CorruptCheckpointError, UsageError
from embedps.run.summary import read_evaluations
from embedps.storage import file_io

_REMOVED_SUFFIX = ".removed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collected:
    """What a collection removed."""

    manifests: tuple[int, ...]
    directories: tuple[str, ...]
    bytes: int


class KeepPolicy:
    """Says which manifests stay. What several policies are given for stays if one of them keeps."""

    def select(self, manifests: Mapping[int, Manifest], now: float) -> set[int]:
        """The numbers of those to keep.

        Args:
          manifests: all that can be read, by number.
          now: seconds since the epoch.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class KeepNewest(KeepPolicy):
    """The newest `count` manifests."""

    count: int = 2

    def select(self, manifests: Mapping[int, Manifest], now: float) -> set[int]:
        return set(sorted(manifests)[-self.count :]) if self.count else set()


@dataclasses.dataclass(frozen=True)
class KeepChains(KeepPolicy):
    """The last manifest of each of the newest `count` chains."""

    count: int = 1

    def select(self, manifests: Mapping[int, Manifest], now: float) -> set[int]:
        last = _last_of_chains(manifests)
        return {last[base] for base in sorted(last)[max(0, len(last) - self.count) :]}


@dataclasses.dataclass(frozen=True)
class KeepYoung(KeepPolicy):
    """Those committed in the last `secs` seconds."""

    secs: float

    def select(self, manifests: Mapping[int, Manifest], now: float) -> set[int]:
        return {n for n, manifest in manifests.items() if now - manifest.wall_time <= self.secs}


@dataclasses.dataclass(frozen=True)
class KeepEvery(KeepPolicy):
    """The first manifest of each period of `hours`, counted from the epoch."""

    hours: float

    def select(self, manifests: Mapping[int, Manifest], now: float) -> set[int]:
        first: dict[float, int] = {}
        for number in sorted(manifests):
            period = manifests[number].wall_time // (3600 * self.hours)
            first.setdefault(period, number)
        return set(first.values())


@dataclasses.dataclass(frozen=True)
class KeepBest(KeepPolicy):
    """The `count` manifests that scored best, by what an evaluator wrote.

    Attributes:
      count: how many.
      model_dir: where evaluation.jsonl is.
      metric: "auc", of which more is better; "logloss" or "normalized_entropy", of which less is.
    """

    count: int
    model_dir: Path
    metric: str = "auc"

    def select(self, manifests: Mapping[int, Manifest], now: float) -> set[int]:
        scores = {}
        for line in read_evaluations(self.model_dir):
            score = line.get(self.metric)
            if line.get("number") in manifests and isinstance(score, int | float):
                scores[line["number"]] = score if self.metric == "auc" else -score
        return set(sorted(scores, key=lambda n: (scores[n], n), reverse=True)[: self.count])


DEFAULT_KEEP: tuple[KeepPolicy, ...] = (KeepNewest(2), KeepChains(1))


def make_keep(
    directory: CheckpointDirectory,
    *,
    chains: int,
    secs: float = 0,
    every_hours: float = 0,
    best: int = 0,
    metric: str = "auc",
) -> tuple[KeepPolicy, ...]:
    """The policies that flags ask for; the newest two manifests stay in any case."""
    policies: list[KeepPolicy] = [KeepNewest(2), KeepChains(chains)]
    policies += [KeepYoung(secs)] if secs else []
    policies += [KeepEvery(every_hours)] if every_hours else []
    policies += [KeepBest(best, directory.path, metric)] if best else []
    return tuple(policies)


def collect_garbage(
    directory: CheckpointDirectory,
    keep: Sequence[KeepPolicy] = DEFAULT_KEEP,
    *,
    under_way: Collection[str] = (),
    now: float | None = None,
) -> Collected:
    """Removes the manifests and saves that nothing needs, and what failed commits left.

    Needed are the newest manifest, those that a policy keeps, every one under a live lease, and
    those by which the lease's holder goes on. What has a number above the newest save's is left
    alone, as a save under way, and so are the directories named in `under_way`. To be called in
    `directory.exclusive()`.

    Raises:
      UsageError: there is no policy.
      CorruptCheckpointError: the newest manifest or a lease cannot be read: nothing was removed.
    """
    if not keep:
        raise UsageError("collect_garbage must be given a policy that says what to keep")
    now = time.time() if now is None else now
    try:
        return _collect(directory, keep, under_way, now)
    except OSError as error:
        raise CheckpointError(f"cannot collect garbage in {directory.path}: {error}") from error


def _collect(
    directory: CheckpointDirectory,
    policies: Sequence[KeepPolicy],
    under_way: Collection[str],
    now: float,
) -> Collected:
    _restore_set_aside(directory)
    manifests = _readable(directory)
    if not manifests:
        return Collected(manifests=(), directories=(), bytes=0)
    keep = {max(manifests)}.union(*(policy.select(manifests, now) for policy in policies))
    keep |= _leased(directory, manifests, now)
    removed = _remove_manifests(directory, manifests, keep, now)
    kept = [manifests[n] for n in manifests if n not in removed]
    directories, num_bytes = _remove_saves(directory, kept, under_way)
    _remove_expired_leases(directory, now)
    return Collected(manifests=tuple(removed), directories=tuple(directories), bytes=num_bytes)


def _last_of_chains(manifests: Mapping[int, Manifest]) -> dict[int, int]:
    """By its base, the last manifest of a chain."""
    return {manifests[n].base_number: n for n in sorted(manifests)}


def _restore_set_aside(directory: CheckpointDirectory) -> None:
    """Undoes a removal that a kill cut short: a lease may count on the manifest."""
    for path in directory.manifests_dir.glob(f"*{_REMOVED_SUFFIX}"):
        file_io.rename(path, path.with_suffix(".json"))


def _readable(directory: CheckpointDirectory) -> dict[int, Manifest]:
    """The manifests by number, without the corrupt; the newest must not be."""
    numbers = directory.numbers()
    manifests: dict[int, Manifest] = {}
    for number in numbers:
        try:
            manifests[number] = directory.read(number)
        except CorruptCheckpointError:
            if number == numbers[-1]:
                raise
    return manifests


def _leased(
    directory: CheckpointDirectory, manifests: Mapping[int, Manifest], now: float
) -> set[int]:
    """The manifests under a lease, and those by which their readers go on."""
    leased = {lease.number for lease in read_leases(directory) if lease.is_live(now)}
    ahead = (way(manifests.values(), position_of(manifests[n])) for n in leased & manifests.keys())
    return leased.union(manifest.number for path in ahead for manifest in path)


def _remove_manifests(
    directory: CheckpointDirectory,
    manifests: Mapping[int, Manifest],
    keep: Collection[int],
    now: float,
) -> list[int]:
    """Removes all manifests but those; they go before their files, so a kill leaves no torn one."""
    going = [number for number in directory.numbers() if number not in keep]
    aside = {n: directory.manifest_path(n).with_suffix(_REMOVED_SUFFIX) for n in going}
    for number, path in aside.items():
        file_io.rename(directory.manifest_path(number), path)
    # Who leased one before it went has now been seen, or will see that it is gone.
    leased = _leased(directory, manifests, now)
    for number in leased & aside.keys():
        file_io.rename(aside.pop(number), directory.manifest_path(number))
    for path in aside.values():
        file_io.unlink(path)
    for path in directory.manifests_dir.glob(f"*{file_io.TEMPORARY_SUFFIX}"):
        file_io.unlink(path)
    file_io.sync_directory(directory.manifests_dir)
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
            num_bytes += file_io.remove_directory(path)
            removed.append(path.name)
    file_io.sync_directory(directory.path)
    return removed, num_bytes


def _remove_expired_leases(directory: CheckpointDirectory, now: float) -> None:
    for lease in read_leases(directory):
        if not lease.is_live(now):
            release_lease(directory, lease.name)
