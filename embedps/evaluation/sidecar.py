"""The evaluator's process beside a trainer's: started again when it dies, ended with it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO

import cloudpickle

from embedps.console.process_logs import how_it_ended, last_line
from embedps.engine.recommender import Recommender
from embedps.errors import ClusterError, UsageError
from embedps.run.config import TrainConfig
from embedps.storage.object_store import as_path, local_dir

RECOMMENDER_VARIABLE = "EMBEDPS_RECOMMENDER"
"""Set by a trainer that sends its model, pickled, to the evaluator's standard input."""

_WELL_SECS = 60.0  # a process that lived for so long did not fail at its start
_MAX_FAILURES = 10  # in a row
_MAX_PAUSE_SECS = 30.0


class Sidecar:
    """Follows a run's checkpoints in a process of its own.

    It restores the chain when it is started again, after a pause that grows with each failure in a
    row. After too many, or once it says that the run's files or flags are wrong, it is not started
    any more; training goes on without it.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        resumed_after: int,
        recommender: Recommender | None = None,
    ) -> None:
        """Starts it; its output goes to MODEL_DIR/logs/evaluator.log.

        Args:
          config: of the run.
          resumed_after: the number up to which a final checkpoint is not this run's last.
          recommender: the model, where no module's name gives it; it is sent to the process, and
            is in no file that others could change.

        Raises:
          UsageError: the recommender cannot be sent to another process.
        """
        logs = local_dir(as_path(config.model_dir)) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / "evaluator.log"
        self._command = [
            *(sys.executable, "-m", "embedps.evaluate", "--model-dir", config.model_dir),
            *(("--model", config.model) if config.model is not None else ()),
            *("--data", config.data, "--resumed-after", str(resumed_after)),
        ]
        # The process imports what this one imports, wherever that comes from.
        path = os.pathsep.join(os.path.abspath(each) for each in sys.path)
        self._environment = dict(
            os.environ,
            EMBEDPS_PARENT_PID=str(os.getpid()),
            PYTHONPATH=path,
            PYTHONUNBUFFERED="1",
        )
        self._environment.pop("TF_CONFIG", None)
        self._stdin: IO[bytes] | None = None
        if recommender is not None:
            self._environment[RECOMMENDER_VARIABLE] = "stdin"
            self._stdin = _pickled(recommender, config.seed)
        self._restarts = 0
        self._code = 0  # of the process that was the last
        self._closed = threading.Event()
        self._lock = threading.Lock()  # that no process starts once this is closed; of _news
        self._news: list[str] = []
        self._process = self._start()
        # It starts the later processes too, and lives as long: a process ends with the thread that
        # started it.
        self._keeper = threading.Thread(target=self._keep, name="sidecar", daemon=True)
        self._keeper.start()

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return self._restarts

    def news(self) -> list[str]:
        """Gives the lines to show a user since the last call: why it ended."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def finish(
        self, *, wait_secs: float, stop: threading.Event, say: Callable[[str], None]
    ) -> None:
        """Waits until it has scored the run's last checkpoint.

        Args:
          wait_secs: how long at most.
          stop: ends the wait, which is no error.
          say: shows a line, where it is started again.

        Raises:
          ClusterError: it ended without, or takes longer.
        """
        deadline = time.monotonic() + wait_secs
        while self._keeper.is_alive() and time.monotonic() < deadline:
            if stop.is_set():
                return
            for line in self.news():
                say(line)
            self._keeper.join(0.2)  # in short waits, between which a signal is taken
        advice = f"see {self.log}; `python -m embedps.evaluate` scores the checkpoints again"
        if self._keeper.is_alive():
            raise ClusterError(
                f"waited {wait_secs:.0f} s for the evaluator to score the last checkpoint: {advice}"
            )
        if self._code != 0:
            raise ClusterError(f"{self._how_it_ended(self._code)}; {advice}")

    def close(self) -> None:
        """Ends it."""
        self._closed.set()
        with self._lock:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    def _keep(self) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            code = self._process.wait()
            failures = failures + 1 if time.monotonic() - began < _WELL_SECS else 1
            pause = min(_MAX_PAUSE_SECS, 2.0 ** (failures - 1))
            for_good = code == UsageError.exit_code or failures > _MAX_FAILURES
            if code != 0 and not self._closed.is_set():
                then = "training goes on without it" if for_good else "it is started again"
                with self._lock:
                    self._news.append(f"{self._how_it_ended(code)}; {then}; see {self.log}")
            if code == 0 or for_good or self._closed.wait(pause):
                self._code = code
                return
            with self._lock:
                if self._closed.is_set():
                    return
                self._restarts += 1
                self._process = self._start()

    def _how_it_ended(self, code: int) -> str:
        said = f": {last_line(self.log)}" if code >= 0 else ""
        return f"the evaluator ended {how_it_ended(code)}{said}"

    def _start(self) -> subprocess.Popen[bytes]:
        if self._stdin is not None:
            self._stdin.seek(0)
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=self._stdin or subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def _pickled(recommender: Recommender, seed: int) -> IO[bytes]:
    try:
        data = cloudpickle.dumps((recommender, seed))
    except Exception as error:  # whatever a user's objects raise
        raise UsageError(
            f"eval='sidecar' scores in another process, and the recommender cannot be sent there "
            f"({type(error).__name__}: {error}): put the model into a module with Config and make, "
            "or use eval='inline' or 'none'"
        ) from error
    file = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the sidecar)
    file.write(data)
    file.flush()
    return file
