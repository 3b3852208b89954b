"""Recovers a client whose cluster is lost, where `server_recovery` does not go on in place.

The client is started again. With a local cluster, this process replaces itself by the same command,
which starts new servers and restores the last checkpoint. An environment variable carries the lost
progress. The workers of a TF_CONFIG without servers do the same, and wait for the lost one. On a
cluster of TF_CONFIG with servers, the process ends with a code that tells an orchestrator to start
it again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

from embedps.console import tf_logging
from embedps.console.lines import say
from embedps.console.shutdown import end_process
from embedps.errors import ClusterError, ServerLostError
from embedps.training.lost_progress import MAX_FRUITLESS, LostProgress

if TYPE_CHECKING:  # it imports TensorFlow
    from embedps.training.trainer import Trainer

_VARIABLE = "EMBEDPS_RECOVERY"


def take_loss() -> LostProgress | None:
    """Reads what an earlier process lost, if this one recovers from that; works once."""
    text = os.environ.pop(_VARIABLE, None)
    return None if text is None else LostProgress(**json.loads(text))


class Recovery:
    """Ends or restarts this process when any of its threads finds the cluster lost."""

    def __init__(self, before: LostProgress | None, *, again: bool) -> None:
        """Prepares for a loss.

        Args:
          before: the progress that was lost before this process began.
          again: restart the process, rather than end it.
        """
        self._before = before
        self._again = again
        self._once = threading.Lock()
        self._trainer: Trainer | None = None

    def follow(self, trainer: Trainer) -> None:
        """Takes the trainer: it knows what would be lost, and which processes to end."""
        self._trainer = trainer

    def begin(self, error: ClusterError) -> NoReturn:
        """Restarts from the last checkpoint, or ends the process."""
        self._once.acquire()  # for good: whoever comes second waits for this process's end
        if not isinstance(error, ServerLostError):
            end_process(str(error), error.exit_code)
        trainer = self._trainer
        if not self._again:
            self._end(error)
        self._end_if_told(error)
        unsaved: dict[str, Any] = {"units": 0, "steps": 0, "examples": 0}
        unsaved["checkpoint"] = self._before.checkpoint if self._before else None
        unsaved["set_aside"] = self._before.set_aside if self._before else 0
        unsaved["repeated"] = self._before.repeated if self._before else 0
        if self._before is not None:
            unsaved["workers"], unsaved["servers"] = self._before.workers, self._before.servers
            unsaved["scalings"] = self._before.scalings
            unsaved["earlier"] = [*self._before.earlier, self._before.record(None)]
        if trainer is not None:
            unsaved = trainer.unsaved()
        loss = LostProgress(why=str(error), noticed_at=time.time(), **unsaved)
        before = self._before
        known = None if before is None else (before.checkpoint, before.set_aside)
        if before is not None and known == (loss.checkpoint, loss.set_aside):
            loss = dataclasses.replace(loss, fruitless=before.fruitless + 1)
        if loss.fruitless > MAX_FRUITLESS:
            end_process(
                f"{error}: {MAX_FRUITLESS} recoveries in a row came to no new checkpoint, so "
                "this one is not tried: see the logs in the model directory",
                ClusterError.exit_code,
            )
        if sys.stdout.isatty():
            print("\x1b[?25h", end="")  # the cursor that a live line hides
        say(loss.describe())
        kept = tf_logging.silence_native_stderr()
        if trainer is not None:
            trainer.close()
        os.dup2(kept, 2)  # for the process to come
        self._end_if_told(error)  # meanwhile
        os.environ[_VARIABLE] = json.dumps(dataclasses.asdict(loss))
        restart()

    def _end_if_told(self, error: ClusterError) -> None:
        if self._trainer is not None and self._trainer.told_to_end:
            self._end(error)

    def _end(self, error: ClusterError) -> NoReturn:
        end_process(
            f"{error}: run the same command again to resume from the last checkpoint",
            error.exit_code,
        )


def restart() -> NoReturn:
    """Replaces this process by the same command.

    SIGTERM and Ctrl-C wait until `sigterm_exits` handles them there: before, they would kill it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
