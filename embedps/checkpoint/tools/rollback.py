"""Goes back to an older manifest of a directory that no run writes to: commits it again.

The new manifest is the newest one, so the next run, evaluators, followers and servers take it. What
came after the older one stays on disk until the next run's policies remove it. See "Rollback" in
docs/checkpoint-format.md.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
from pathlib import Path
from typing import Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.lease import LeaseRenewer
from embedps.errors import CheckpointError, DirectoryInUseError, UsageError
from embedps.score_names import EVALUATIONS_NAME
from embedps.storage import file_io
from embedps.storage.file_lock import RUN_LOCK_NAME, check_locks, locked

ASIDE_NAME = "evaluation.rolled-back.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RollbackResult:
    """What a rollback did.

    Attributes:
      manifest: the committed manifest.
      evaluations: how many later evaluations it moved to ASIDE_NAME.
    """

    manifest: Manifest
    evaluations: int


def rollback(directory: CheckpointDirectory, number: int) -> RollbackResult:
    """Commits a manifest that has the rows, the network and the input position of an older one.

    All of its files are compared with their checksums first. Evaluations of later manifests go out
    of evaluation.jsonl, because the next run acts on what it finds there.

    Args:
      number: the older manifest's.

    Raises:
      UsageError: the manifest is the newest.
      DirectoryInUseError: a run trains in the directory.
      CheckpointError: there is no such manifest (any more), or a file cannot be written.
      CorruptCheckpointError: a file is not what the manifest says. Nothing was committed.
    """
    check_locks(directory.path, "roll back")
    with (
        locked(directory.path / RUN_LOCK_NAME, wait=False) as held,
        LeaseRenewer(directory, holder="rollback") as lease,
    ):
        if not held:
            raise DirectoryInUseError(
                f"{directory.path} is in use by a run, which would go on from its own last "
                "checkpoint: end it first"
            )
        manifest = lease.take(number) or directory.read(number)  # which says what there is
        directory.check_content(manifest, manifest.files)
        with directory.exclusive():
            if number == directory.numbers()[-1]:
                raise UsageError(
                    f"--to must be before the newest manifest, {number}: a run goes on from there"
                )
            evaluations = _set_evaluations_aside(directory.path, number)
            committed = _commit(directory, manifest)
    return RollbackResult(manifest=committed, evaluations=evaluations)


def commit_again(directory: CheckpointDirectory, manifest: Manifest, **changes: Any) -> Manifest:
    """Commits a manifest as the newest, with some fields changed, for the run of the directory.

    Raises:
      CheckpointError: it cannot be written.
      CorruptCheckpointError: one of its files is absent.
    """
    with directory.exclusive():
        return _commit(directory, dataclasses.replace(manifest, **changes))


def _commit(directory: CheckpointDirectory, manifest: Manifest) -> Manifest:
    committed = dataclasses.replace(
        manifest,
        version=0,
        number=directory.next_number(),
        wall_time=time.time(),
        # Who has the rows of a later save must not take the next delta for a continuation.
        history=secrets.token_hex(8),
    )
    directory.commit(committed)
    return committed


def _set_evaluations_aside(path: Path, number: int) -> int:
    """Moves the evaluations of manifests after `number` to another file; returns how many."""
    try:
        lines = file_io.read_bytes(path / EVALUATIONS_NAME).splitlines(keepends=True)
        later = [line for line in lines if _number_of(line) > number]
        if later:
            with open(path / ASIDE_NAME, "ab") as file:
                file.writelines(later)
            kept = b"".join(line for line in lines if _number_of(line) <= number)
            file_io.write_bytes(path / EVALUATIONS_NAME, kept)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise CheckpointError(f"{path / EVALUATIONS_NAME} cannot be changed: {error}") from error
    return len(later)


def _number_of(line: bytes) -> int:
    """Returns the number of an evaluation's manifest; -1 of a line that is no evaluation."""
    try:
        number = json.loads(line)["number"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return -1
    return number if isinstance(number, int) else -1
