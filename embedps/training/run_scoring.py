"""Scores the checkpoints of a run: in a process beside it, or on its workers while it pauses."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.console.lines import say
from embedps.engine.recommender import Recommender
from embedps.errors import ClusterError
from embedps.evaluation.inline import InlineEvaluation
from embedps.evaluation.sidecar import Sidecar
from embedps.run.run_config import RunConfig
from embedps.run.summary import read_evaluations
from embedps.run.tf_config import read_tf_config
from embedps.scheduling.ledger import Ledger


class RunScoring:
    """Scores a run as its config asks for.

    Attributes:
      inline: scores on the workers; None if the config asks for another way.
    """

    def __init__(
        self,
        run: RunConfig,
        recommender: Recommender,
        directory: CheckpointDirectory,
    ) -> None:
        """Scores nothing yet.

        Args:
          run: its configs.
        """
        self._run = run
        self._recommender = recommender
        self._directory = directory
        self.inline: InlineEvaluation | None = None
        self._sidecar: Sidecar | None = None

    @property
    def restarts(self) -> int:
        """How often the evaluator's process was started again."""
        return 0 if self._sidecar is None else self._sidecar.restarts

    def news(self) -> list[str]:
        """Gives the lines to show a user since the last call."""
        return [] if self._sidecar is None else self._sidecar.news()

    def start(self, last: Manifest | None, *, finished: bool) -> None:
        """Starts the evaluator's process if the run needs one.

        On a cluster of TF_CONFIG the evaluator is a task of its own.

        Args:
          last: the run's last checkpoint.
          finished: nothing is left to train.
        """
        config = self._run.config
        asked = config.evaluation.mode == "sidecar" and read_tf_config() is None
        if not asked or (finished and last is not None and self._is_scored(last)):
            return
        self._sidecar = Sidecar(
            config,
            # Up to this number, a final checkpoint is not the last one of this run.
            resumed_after=-1 if last is None or finished else last.number,
            recommender=self._recommender if config.model is None else None,
        )

    def next_pause(self, ledger: Ledger) -> float:
        """Gives the number of units done at which training pauses to be scored."""
        if self.inline is None:
            return math.inf
        return self._pause_after(self.inline, ledger, ledger.num_done)

    def _pause_after(self, inline: InlineEvaluation, ledger: Ledger, done: int) -> int:
        first, units = ledger.epoch_at(done)
        pause = first + inline.next_pause(done - first, units)
        every = self._run.config.evaluation.every_epochs
        while first + units == pause < ledger.num_units and (first // units + 1) % every:
            first, units = ledger.epoch_at(pause)
            pause = first + inline.next_pause(0, units)
        return pause

    def score_at_pause(
        self,
        last: Manifest | None,
        ledger: Ledger,
        *,
        scored_step: int,
        stop: threading.Event,
        check: Callable[[], None],
        say: Callable[[str], None],
    ) -> bool:
        """Scores the last checkpoint on the workers if training is at a pause for it.

        Args:
          last: the run's last checkpoint.
          scored_step: the step of the last evaluation.
          stop: ends the scoring, which then gives no scores.
          check: raises if the cluster cannot go on.
          say: shows a line.

        Returns:
          Whether the checkpoint was to be scored.
        """
        done = ledger.num_done
        if self.inline is None or last is None or done == 0 or stop.is_set():
            return False
        at_pause = self._pause_after(self.inline, ledger, done - 1) == done
        if not at_pause or last.step <= scored_step:
            return False
        found = self.inline.score(self._directory.path, last, stop, check)
        if found is not None:
            say(f"step {found.step}: {found.metrics.describe()} in {found.secs:.1f} s")
        return True

    def wait(self, stop: threading.Event) -> str | None:
        """Waits for the evaluator to score the last checkpoint.

        Returns:
          Why there are no scores; None if there are, or if a signal ended the wait.
        """
        if self._sidecar is None or stop.is_set():
            return None
        say("waiting for the evaluator to score the last checkpoint")
        try:
            self._sidecar.finish(
                wait_secs=self._run.config.cluster.wait_secs,
                stop=stop,
                say=say,
            )
        except ClusterError as error:
            say(f"embedps: {error}", file=sys.stderr)
            return str(error)
        return None

    def close(self) -> None:
        """Ends the evaluator's process."""
        if self._sidecar is not None:
            self._sidecar.close()

    def _is_scored(self, last: Manifest) -> bool:
        scored = [e["step"] for e in read_evaluations(self._directory.path)[-1:]]
        # By the step: what was scored may be the same state with an older base.
        return last.final and scored == [last.step]
