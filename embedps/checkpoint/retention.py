"""What may go: the manifests and saves that nothing needs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection

from embedps.checkpoint import io
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.lease import read_leases, release_lease
from embedps.checkpoint.manifest import Manifest
from embedps.errors import CheckpointError, CorruptCheckpointError

_REMOVED_SUFFIX = ".removed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collected:
    """What a collection removed."""

    manifests: tuple[int, ...]
    directories: tuple[str, ...]
    bytes: int


def collect_garbage(
    directory: CheckpointDirectory,
    *,
    keep_manifests: int = 2,
    keep_chains: int = 1,
    now: float | None = None,
) -> Collected:
    """Removes the manifests and saves that nothing needs, and what failed commits left.

    Needed are the newest `keep_manifests` manifests, the last manifest of each of the newest
    `keep_chains` chains, and every manifest under a live lease. Only the writer of the directory
    calls this, and not during a save: what has a number above the newest manifest's is left alone.

    Raises:
      CorruptCheckpointError: the newest manifest or a lease cannot be read: nothing was removed.
    """
    if keep_manifests < 1 or keep_chains < 0:
        raise CheckpointError(
            "keep_manifests must be at least 1 and keep_chains at least 0 but got "
            f"{keep_manifests} and {keep_chains}"
        )
    now = time.time() if now is None else now
    try:
        return _collect(directory, keep_manifests, keep_chains, now)
    except OSError as error:
        raise CheckpointError(f"cannot collect garbage in {directory.path}: {error}") from error


def _collect(
    directory: CheckpointDirectory, keep_manifests: int, keep_chains: int, now: float
) -> Collected:
    _restore_set_aside(directory)
    manifests = _readable(directory)
    if not manifests:
        return Collected(manifests=(), directories=(), bytes=0)
    keep = set(sorted(manifests)[-keep_manifests:])
    last_of_chain = {manifests[n].base_number: n for n in sorted(manifests)}
    keep |= {
        last_of_chain[base] for base in sorted(last_of_chain)[len(last_of_chain) - keep_chains :]
    }
    keep |= _leased(directory, now)
    removed = _remove_manifests(directory, keep, now)
    kept = [manifests[n] for n in manifests if n not in removed]
    directories, num_bytes = _remove_saves(directory, kept)
    _remove_expired_leases(directory, now)
    return Collected(manifests=tuple(removed), directories=tuple(directories), bytes=num_bytes)


def _restore_set_aside(directory: CheckpointDirectory) -> None:
    """Undoes a removal that a kill cut short: a lease may count on the manifest."""
    for path in directory.manifests_dir.glob(f"*{_REMOVED_SUFFIX}"):
        path.replace(path.with_suffix(".json"))


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


def _leased(directory: CheckpointDirectory, now: float) -> set[int]:
    return {lease.number for lease in read_leases(directory) if lease.is_live(now)}


def _remove_manifests(
    directory: CheckpointDirectory, keep: Collection[int], now: float
) -> list[int]:
    """Removes all manifests but those; they go before their files, so a kill leaves no torn one."""
    going = [number for number in directory.numbers() if number not in keep]
    aside = {n: directory.manifest_path(n).with_suffix(_REMOVED_SUFFIX) for n in going}
    for number, path in aside.items():
        directory.manifest_path(number).replace(path)
    # Who leased one before it went has now been seen, or will see that it is gone.
    leased = _leased(directory, now)
    for number in leased & aside.keys():
        aside.pop(number).replace(directory.manifest_path(number))
    for path in aside.values():
        path.unlink()
    for path in directory.manifests_dir.glob(f"*{io.TEMPORARY_SUFFIX}"):
        path.unlink()
    io.sync_directory(directory.manifests_dir)
    return sorted(aside)


def _remove_saves(
    directory: CheckpointDirectory, kept: Collection[Manifest]
) -> tuple[list[str], int]:
    needed = {file.directory for manifest in kept for file in manifest.files}
    newest = max(manifest.number for manifest in kept)
    removed = []
    num_bytes = 0
    for number, path in directory.save_directories():
        if number <= newest and path.name not in needed:
            num_bytes += io.remove_directory(path)
            removed.append(path.name)
    io.sync_directory(directory.path)
    return removed, num_bytes


def _remove_expired_leases(directory: CheckpointDirectory, now: float) -> None:
    for lease in read_leases(directory):
        if not lease.is_live(now):
            release_lease(directory, lease.name)
