"""Removes the files of saves that failed or were never committed."""

from __future__ import annotations

from contextlib import suppress

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.errors import CheckpointError
from embedps.storage import file_io


class LeftoverSaves:
    """Removes the directories of failed saves, so that retries do not fill a full disk."""

    def __init__(self, directory: CheckpointDirectory) -> None:
        self._directory = directory
        self._names: set[str] = set()

    def add(self, *names: str) -> None:
        """Takes directories to be removed later: someone may still write there."""
        self._names.update(names)

    def discard(self, *names: str) -> None:
        """Removes directories now, or with a later call if that fails."""
        self.add(*names)
        self.remove()

    def remove(self) -> None:
        """Removes what was added, but not what a manifest names."""
        if not self._names:
            return
        with suppress(OSError, CheckpointError):
            lowest = min(int(name.rpartition("-")[2]) for name in self._names)
            manifests = (self._directory.read(n) for n in self._directory.numbers() if n >= lowest)
            needed = {file.directory for manifest in manifests for file in manifest.files}
            for name in sorted(self._names):
                path = self._directory.path / name
                if name not in needed and path.is_dir():
                    file_io.store_of(path).remove_directory(path)
                self._names.discard(name)

    def remove_uncommitted(self) -> None:
        """Removes what a killed run wrote and did not commit: the disk may have no room for it.

        Its dense files stay until the next commit: they show how far it came. In an object store
        nothing is removed, because no lock says that no other run writes there.
        """
        if not file_io.store_of(self._directory.path).has_locks:
            return
        with suppress(OSError, CheckpointError):
            newest = self._directory.latest()
            committed = -1 if newest is None else newest.save_number
            self.discard(
                *(
                    path.name
                    for number, path in self._directory.save_directories()
                    if number > committed and not path.name.startswith("dense-")
                )
            )
