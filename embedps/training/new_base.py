"""A new base of a run's checkpoints, which is written in the background while deltas go on."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable

import tensorflow as tf

from embedps.checkpoint.format.manifest import SaveSet
from embedps.errors import CheckpointError
from embedps.training.leftover_saves import LeftoverSaves
from embedps.training.save_failures import in_background

_MAX_SAVES_BEFORE_BASE = 64
_STOP_SECS = 5.0  # for a base that is given up; a disk may hang


class NewBase:
    """Has a new base written, gives it once it is there, and delays the next one if it fails.

    Attributes:
      name: of the base's directory while it is written; None if none is.
    """

    def __init__(
        self, leftovers: LeftoverSaves, stop: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        """Begins none yet.

        Args:
          leftovers: removes the files of a base that fails.
          stop: makes the writing of a base fail.
          say: shows a line.
        """
        self._leftovers, self._stop, self._say = leftovers, stop, say
        self._save: concurrent.futures.Future[SaveSet] | None = None
        self._failed = 0  # in a row
        self._saves_before = 0  # after one that failed
        self.name: str | None = None

    def begin(self, number: int, write: Callable[[], SaveSet]) -> None:
        """Begins to write the base of a number."""
        self.name, self._save = f"base-{number}", in_background(write)

    def waits(self) -> bool:
        """Tells whether none should begin after this save, because others failed."""
        if not self._saves_before:
            return False
        self._saves_before -= 1
        return True

    def wait(self) -> None:
        """Waits until it is written, or has failed."""
        if self._save is not None:
            concurrent.futures.wait([self._save])

    def take(self) -> SaveSet | None:
        """Gives the new base once it is written: the deltas from now on bring it up to date.

        One that could not be written is removed, and the deltas go on without it.
        """
        name, save = self.name, self._save
        if name is None or save is None or not save.done():
            return None
        self.name = self._save = None
        try:
            return save.result()
        except CheckpointError as error:
            self.failed(error)
        except tf.errors.OpError:
            pass  # its shard is gone, as the next delta finds out
        except BaseException:
            self._leftovers.discard(name)
            raise
        self._leftovers.discard(name)
        return None

    def failed(self, error: CheckpointError) -> None:
        """Delays the next try, longer each time: a failed base costs as much as a good one."""
        self._failed += 1
        self._saves_before = min(_MAX_SAVES_BEFORE_BASE, 2**self._failed)
        self._say(f"the new base is given up, and the deltas go on without it: {error}")

    def committed(self) -> None:
        """Takes that a chain begins with it."""
        self._failed = self._saves_before = 0

    def give_up(self) -> None:
        """Stops the writing, and removes what was written."""
        name, save = self.name, self._save
        self.name = self._save = None
        if name is None or save is None:
            return
        in_background(self._stop)  # which a server that hangs does not answer
        if concurrent.futures.wait([save], timeout=_STOP_SECS).not_done:
            self._leftovers.add(name)  # the next save removes it
        else:
            self._leftovers.discard(name)
