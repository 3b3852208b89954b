"""Whether the server serves, for those who ask once and those who watch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


class Health:
    """Tells watchers of each change."""

    def __init__(self) -> None:
        """Starts as not serving."""
        self._changed = threading.Condition()
        self._is_serving = False
        self._has_ended = False

    @property
    def is_serving(self) -> bool:
        """Whether the server serves."""
        return self._is_serving

    @property
    def has_ended(self) -> bool:
        """Whether the server ends."""
        return self._has_ended

    def set(self, is_serving: bool) -> None:
        """Changes it."""
        with self._changed:
            self._is_serving = is_serving
            self._changed.notify_all()

    def end(self) -> None:
        """Ends all watches, once each has given the last change."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Makes watchers look whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()

    def watch(self, look: Callable[[], T], is_wanted: Callable[[], bool]) -> Iterator[T]:
        """Gives what is seen now, and each time that it is something else.

        Args:
          look: gives what depends on `is_serving`.
          is_wanted: whether to go on; `wake` after it changed.
        """
        last = None
        while True:
            with self._changed:
                while (seen := look()) == last:
                    if self._has_ended or not is_wanted():
                        return
                    self._changed.wait()
            yield seen
            last = seen
