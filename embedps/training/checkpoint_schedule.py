"""Schedules the saves of a run: by its policy, at a notice, after a failure, and at the end."""

from __future__ import annotations

import concurrent.futures
import math
import threading
import time
from collections.abc import Callable

from embedps.checkpoint.format.manifest import Manifest
from embedps.errors import CheckpointError
from embedps.run.checkpoint_config import CheckpointConfig
from embedps.scheduling.ledger import Ledger
from embedps.training.checkpoint_writer import REST_SHARE
from embedps.training.save_failures import SaveFailures, in_background

_TICK_SECS = 0.2
_PAUSE_SHARE = 0.05  # of the time, what saves may take for which training pauses


class CheckpointSchedule:
    """Runs saves on a background thread, one at a time, and collects their outcomes."""

    def __init__(
        self,
        config: CheckpointConfig,
        ledger: Ledger,
        save: Callable[..., Manifest],
        *,
        say: Callable[[str], None],
    ) -> None:
        """Schedules the first save.

        Args:
          config: how often, and for how long without.
          ledger: counts steps and units; no save is due if no unit was done since the last one.
          save: writes a checkpoint. `final` says that none follows; `rest_secs` is how long in all
            its writers may rest while training needs the cores.
          say: shows a line.
        """
        self._ledger = ledger
        self._save = save
        self._policy = config.save_policy()
        self._max_interval_secs = config.delta_secs
        self._failing = SaveFailures(max_secs=config.max_secs_without_checkpoint, say=say)
        self._say = say
        self._retry_at = -math.inf
        self._rest_until = -math.inf
        self._said_rest = False
        self._under_way: concurrent.futures.Future[Manifest] | None = None
        self.count_from_now()

    def count_from_now(self) -> None:
        """Starts the interval to the next save now."""
        self._at_once = False
        self._last = time.monotonic()
        self._saved_units, self._saved_steps = self._ledger.num_done, self._ledger.steps_done()

    @property
    def under_way(self) -> bool:
        """Whether a save is being written, or `poll` has not yet collected its outcome."""
        return self._under_way is not None

    @property
    def lags(self) -> bool:
        """Whether something was trained that no checkpoint has."""
        return self._failing.since is not None or self._ledger.num_done > self._saved_units

    def unsaved_secs(self) -> float:
        """Tells for how long a save has been tried that is not committed; 0 if all are."""
        return self._failing.secs

    def problem(self) -> str:
        """Tells why the last save failed; empty if it did not."""
        return self._failing.problem

    def wait(self, secs: float) -> None:
        """Waits until the save under way has ended, for `secs` at most."""
        if self._under_way is not None:
            concurrent.futures.wait([self._under_way], timeout=secs)

    def drop(self, secs: float) -> bool:
        """Waits for the save under way, whatever becomes of it; tells whether it ended in time.

        The next one has what it did not commit.
        """
        self.wait(secs)
        if self._under_way is not None and not self._under_way.done():
            return False
        self._under_way = None
        return True

    def paused_for(self, secs: float) -> None:
        """Takes for how long a save had training pause; the next one comes the later for it."""
        rest = secs / _PAUSE_SHARE - secs
        self._rest_until = time.monotonic() + rest
        if rest > self._max_interval_secs and not self._said_rest:
            self._said_rest = True
            self._say(
                f"training paused for {secs:.1f} s to be saved: the next checkpoint comes in "
                f"{rest:.0f} s, so that pauses take {_PAUSE_SHARE:.0%} of the time at most"
            )

    def hurry(self) -> None:
        """Makes the next save due at once, at full speed."""
        self._at_once = True

    def poll(self) -> None:
        """Collects the outcome of the save under way, if it has ended.

        Raises:
          CheckpointsStalledError: none could be written for too long.
          DirectoryTakenError: another run commits to the model directory.
        """
        if self._under_way is not None and self._under_way.done():
            problem = self._under_way.exception()
            if problem is not None and not isinstance(problem, CheckpointError):
                raise problem
            self._under_way = None
            if problem is None:
                self._failing.committed()
            else:
                self._failing.failed(problem)
                self._retry_at = time.monotonic() + self._failing.retry_secs
        self._failing.check()

    def is_due(self) -> bool:
        """Tells whether a save is to begin, and none is under way."""
        now = time.monotonic()
        if self._under_way is not None:
            return False
        if self._ledger.num_undone and not self._at_once:
            return False  # it would list these units as partially applied
        if self._failing.since is not None:
            return now >= self._retry_at
        if now < self._rest_until and not self._at_once:
            return False
        return self._ledger.num_done > self._saved_units and (
            self._at_once
            or self._policy.due(
                secs=now - self._last, steps=self._ledger.steps_done() - self._saved_steps
            )
        )

    def begin(self) -> None:
        """Starts a save; none may be under way."""
        interval = min(self._max_interval_secs, time.monotonic() - self._last)
        rest = 0.0 if self._at_once else REST_SHARE * interval
        self._failing.began()
        self.count_from_now()
        self._under_way = in_background(lambda: self._save(final=False, rest_secs=rest))

    def save_last(self, *, final: bool, stop: threading.Event) -> None:
        """Saves before training pauses or ends; retries until it works or a signal comes.

        Args:
          final: no checkpoint follows.
          stop: set by a signal.

        Raises:
          CheckpointError: it cannot be written.
        """
        while True:
            self._failing.began()
            saving = in_background(lambda: self._save(final=final, rest_secs=0.0))
            while not saving.done():
                concurrent.futures.wait([saving], timeout=_TICK_SECS)
                self._failing.check()
            try:
                saving.result()
            except CheckpointError as error:
                if stop.is_set():
                    raise
                self._failing.failed(error)
                stop.wait(self._failing.retry_secs)
            else:
                self._failing.committed()
                return
