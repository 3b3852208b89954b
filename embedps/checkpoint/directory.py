"""The checkpoint directory: where each file lies, and the commit of a manifest.

    DIR/manifests/NNNNNNNN.json                commit = atomic rename of this file
    DIR/base-N/<group>/shard-i-of-n.arrow      all rows of that shard
    DIR/delta-N/<group>/shard-i-of-n.arrow     rows changed since the save before, and removals
    DIR/dense-N/dense.arrow                    dense variables and their optimizer
    DIR/vectors-N/<group>/<name>.arrow         rows with which rows of their ids begin
    DIR/leases/<name>.json                     which manifests are being read, and until when
    DIR/refs/<name>.json                       which manifest a name stands for, and its moves
    DIR/manifests/.lock                        held by a process that commits or removes

Numbers only grow. A number is used once, even if its commit failed.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath

from embedps import constants
from embedps.checkpoint.format.manifest import FileEntry, Manifest, SaveKind
from embedps.checkpoint.format.manifest_json import from_json, to_json
from embedps.errors import CheckpointError, CorruptCheckpointError, DirectoryTakenError
from embedps.storage import file_io
from embedps.storage.file_lock import locked
from embedps.storage.object_store import as_path

# Exactly the names that a save writes: another name of the same number would be another file.
_MANIFEST_NAME = re.compile(r"([0-9]{8}|[1-9][0-9]{8,17})\.json")
_SAVE_NAME = re.compile(r"(base|delta|dense|vectors)-(0|[1-9][0-9]{0,14})")


class CheckpointDirectory:
    """Finds a checkpoint's files, reads its manifests, and commits new ones."""

    def __init__(self, path: Path | str) -> None:
        """Takes a local path, or a file://, s3:// or gs:// URL."""
        self.path = as_path(path)

    def __repr__(self) -> str:
        return f"CheckpointDirectory({str(self.path)!r})"

    @property
    def manifests_dir(self) -> Path:
        """Returns the directory of the manifests."""
        return self.path / "manifests"

    @property
    def leases_dir(self) -> Path:
        """Returns the directory of the leases."""
        return self.path / "leases"

    @property
    def refs_dir(self) -> Path:
        """Returns the directory of the refs."""
        return self.path / "refs"

    def manifest_path(self, number: int) -> Path:
        """Returns a manifest's path."""
        return self.manifests_dir / f"{number:08d}.json"

    def base_dir(self, number: int) -> Path:
        """Returns a base's directory."""
        return self.path / f"base-{number}"

    def vectors_dir(self, number: int) -> Path:
        """Returns a directory of initial vectors."""
        return self.path / f"vectors-{number}"

    def was_continued(self, manifest: Manifest) -> bool:
        """Whether an earlier run may have committed a later save, which someone may have read."""
        later = (n for n, _ in self.save_directories() if n > manifest.save_number)
        return any(self.dense_path(number).exists() for number in later)

    def dense_path(self, number: int) -> Path:
        """Returns the path of a dense file."""
        return self.path / f"dense-{number}" / "dense.arrow"

    def shard_path(
        self,
        kind: SaveKind,
        number: int,
        group: str,
        shard: int,
        num_shards: int,
        *,
        admission: bool = False,
    ) -> Path:
        """Returns the path where a shard writes its rows of a group, or its counters."""
        if group != PurePosixPath(group).name:
            raise CheckpointError(f"a group's name must be a file name but is {group!r}")
        name = constants.admission_file_name if admission else constants.shard_file_name
        return self.path / f"{kind}-{number}" / group / name(shard, num_shards)

    def relative(self, path: Path) -> str:
        """Returns a path of the directory as a manifest names it."""
        return path.relative_to(self.path).as_posix()

    def file(self, entry: FileEntry) -> Path:
        """Returns the path of a file that a manifest lists."""
        return self.path / entry.path

    def holds_none(self) -> CheckpointError:
        """Makes the error of a reader that needs a manifest where there is none."""
        return CheckpointError(f"{self.path} holds no manifest: nothing was committed there")

    def numbers(self) -> list[int]:
        """Lists the numbers of the committed manifests, in order."""
        # As names: a follower lists thousands several times per second.
        found = map(
            _MANIFEST_NAME.fullmatch,
            file_io.store_of(self.manifests_dir).names_in(self.manifests_dir),
        )
        return sorted(int(match[1]) for match in found if match)

    def save_directories(self) -> list[tuple[int, Path]]:
        """Lists the directories of saves and dense states by number, uncommitted ones too."""
        if not self.path.is_dir():
            return []
        found = ((_SAVE_NAME.fullmatch(each.name), each) for each in self.path.iterdir())
        return sorted((int(match[2]), each) for match, each in found if match and each.is_dir())

    def exclusive(self) -> AbstractContextManager[bool]:
        """Locks the directory: other processes can still read, but not commit or remove."""
        return locked(self.manifests_dir / ".lock")

    def next_number(self) -> int:
        """Returns a number that no manifest and no leftover of a failed commit has."""
        saves = [number for number, _ in self.save_directories()]
        return max([0, *self.numbers(), *saves]) + 1

    def read(self, number: int) -> Manifest:
        """Reads one manifest; `check_present` checks its files.

        Raises:
          CheckpointError: there is no such manifest.
          CorruptCheckpointError: it is not what was committed.
        """
        path = self.manifest_path(number)
        try:
            data = file_io.read_bytes(path)
        except FileNotFoundError:
            raise CheckpointError(
                f"{path}: there is no manifest {number}, there are {self.numbers()}"
            ) from None
        except file_io.NoFileError as error:
            raise CorruptCheckpointError(f"{path}: {error.strerror}: remove it") from error
        except OSError as error:
            raise CheckpointError(f"cannot read manifest {path}: {error}") from error
        manifest = from_json(data, path)
        if manifest.number != number:
            raise CorruptCheckpointError(
                f"{path}: field 'number': expected {number}, found {manifest.number}"
            )
        return manifest

    def latest(self, *, skip_corrupt: bool = False) -> Manifest | None:
        """Reads the newest manifest; returns None if nothing was committed yet.

        A commit is one synced rename, so a crash cannot leave a corrupt manifest: a corrupt one was
        damaged from outside. By default this raises. A silent resume from an older manifest would
        hide the damage.

        Args:
          skip_corrupt: read the newest readable manifest instead.

        Raises:
          CorruptCheckpointError: the newest manifest is corrupt; with `skip_corrupt`, all are.
        """
        first_error: CorruptCheckpointError | None = None
        numbers = self.numbers()
        while numbers:
            number = numbers.pop()
            try:
                return self.read(number)
            except CorruptCheckpointError as error:
                if not skip_corrupt:
                    raise
                first_error = first_error or error
            except CheckpointError:
                path = self.manifest_path(number)
                if path.exists():
                    raise
                # Garbage collection removed it after the listing, so newer ones exist now.
                numbers = self.numbers()
                if number in numbers:
                    raise CorruptCheckpointError(
                        f"{path} must be a file, but is a link that leads nowhere: remove it"
                    ) from None
        if first_error is not None:
            raise first_error
        return None

    def commit(self, manifest: Manifest) -> None:
        """Commits a manifest by one atomic rename; call it inside `exclusive`.

        Raises:
          CheckpointError: the manifest cannot be written.
          DirectoryTakenError: its number is not greater than the newest manifest's.
          CorruptCheckpointError: a file that it names is absent or has another size.
        """
        newest = max(self.numbers(), default=-1)
        if manifest.number <= newest:
            raise DirectoryTakenError(
                f"{self.path}: a commit's number must be greater than the newest manifest's, "
                f"{newest}, but is {manifest.number}: another run writes here"
            )
        self.check_present(manifest)
        file_io.write_once(self.manifest_path(manifest.number), to_json(manifest))

    def check_present(self, manifest: Manifest) -> None:
        """Checks that every file exists and has its size.

        Raises:
          CorruptCheckpointError: a file does not; names path, field, expected and found.
        """
        for entry in manifest.files:
            path = self.file(entry)
            try:
                found = path.stat()
            except OSError as error:
                raise _absent(path, manifest, error) from error
            if not stat.S_ISREG(found.st_mode):
                raise CorruptCheckpointError(
                    f"{path}: manifest {manifest.number} names it, but it is not a regular file: "
                    "restore another manifest"
                )
            if found.st_size != entry.bytes:
                raise _differs(path, manifest, "bytes", entry.bytes, found.st_size)

    def check_content(self, manifest: Manifest, entries: Iterable[FileEntry]) -> None:
        """Reads whole files of a manifest, and checks their sizes and checksums.

        Raises:
          CorruptCheckpointError: a file differs; names path, field, expected and found.
        """
        for entry in entries:
            path = self.file(entry)
            try:
                num_bytes, checksum = file_io.checksum_file(path)
            except OSError as error:
                raise _absent(path, manifest, error) from error
            if num_bytes != entry.bytes:
                raise _differs(path, manifest, "bytes", entry.bytes, num_bytes)
            if checksum != entry.xxh3_64:
                raise _differs(path, manifest, "xxh3_64", entry.xxh3_64, checksum)


def _absent(path: Path, manifest: Manifest, error: OSError) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{path}: manifest {manifest.number} names it, but it cannot be read "
        f"({error.strerror or error}): restore another manifest"
    )


def _differs(
    path: Path, manifest: Manifest, field: str, expected: object, found: object
) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{path}: field {field!r}: expected {expected}, found {found} (manifest {manifest.number})"
    )
