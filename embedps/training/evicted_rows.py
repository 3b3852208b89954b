"""Keeps the rows that a run evicts in files, one set per save."""

from __future__ import annotations

from embedps.checkpoint.evicted_directory import EvictedDirectory
from embedps.tables.evicted_files import EvictedFiles


class EvictedRowsWriter:
    """Writes the evicted rows of a run to a directory.

    The files of a save are finished before its manifest is committed. So after any crash, each row
    that the newest manifest lacks because it was evicted is in a file.
    """

    def __init__(self, directory: EvictedDirectory, files: EvictedFiles) -> None:
        """Has not begun: what the tables evict is dropped.

        Args:
          directory: claimed by this run.
          files: of the run's tables.
        """
        self._directory = directory
        self._files = files
        self._news: list[str] = []
        self.counts = {"rows": 0, "lost": 0, "bytes": 0}

    def begin(self, save_number: int) -> None:
        """Keeps what is evicted from now on; the tables are as save `save_number` has them.

        Raises:
          CheckpointError: files of later saves, which a crash left, cannot be removed.
        """
        self._directory.remove_after(save_number)
        self._next(save_number + 1)

    def finish(self, save_number: int) -> None:
        """Finishes the files of the rows that went before a save that is about to be committed."""
        self._next(save_number + 1)

    def news(self) -> list[str]:
        """Gives the lines to show since the last call: which rows could not be written, and why."""
        news, self._news = self._news, []
        return news

    def _next(self, number: int) -> None:
        made = self._files.next_files(
            lambda group, shard, n: str(self._directory.shard_path(number, group, shard, n))
        )
        for name in self.counts:
            self.counts[name] += getattr(made, name)
        if made.errors:
            self._news.append(f"{made.lost:,} evicted rows are lost: {made.errors[0]}")
