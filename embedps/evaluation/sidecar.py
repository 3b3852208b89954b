"""Runs the evaluator in a process beside the trainer's; starts it again when it dies."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

import cloudpickle

from embedps.console.child_process import ChildProcess, how_it_ended
from embedps.engine.recommender import Recommender
from embedps.errors import ClusterError, UsageError
from embedps.run.config import TrainConfig
from embedps.storage.object_store import as_path, local_dir

RECOMMENDER_VARIABLE = "EMBEDPS_RECOMMENDER"
"""Set by a trainer that sends its pickled model to the evaluator's standard input."""

_MEMORY = ("max_memory_bytes", "spill_dir")
_HEALTHY_SECS = 60.0  # a process that ran for this long did not fail at its start
_MAX_FAILURES = 10  # in a row
_MAX_PAUSE_SECS = 30.0


class Sidecar:
    """Follows a run's checkpoints in a process of its own.

    A process that is started again restores the newest checkpoint. The pause before it grows with
    each failure in a row. After too many failures, or if the run's files or flags are wrong, it is
    not started again; training goes on without it.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        resumed_after: int,
        recommender: Recommender | None = None,
    ) -> None:
        """Starts the process; its output goes to MODEL_DIR/logs/evaluator.log.

        Args:
          resumed_after: a final checkpoint up to this number is not this run's last one.
          recommender: the model, if no module's name gives it. The process reads it from its
            standard input, so that it is in no file that others could change.

        Raises:
          UsageError: the recommender cannot be sent to another process.
        """
        logs = local_dir(as_path(config.model_dir)) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / "evaluator.log"
        # The process imports from where this one does.
        path = os.pathsep.join(os.path.abspath(each) for each in sys.path)
        environment = dict(os.environ, PYTHONPATH=path)
        environment.pop("TF_CONFIG", None)
        stdin: IO[bytes] | None = None
        if recommender is not None:
            environment[RECOMMENDER_VARIABLE] = "stdin"
            stdin = _pickled(recommender, config.seed)
        self._restarts = 0
        self._code = 0  # of the last process
        self._closed = threading.Event()
        self._lock = threading.Lock()  # of _news
        self._news: list[str] = []
        self._process = ChildProcess(
            [
                *("-m", "embedps.evaluate", "--model-dir", config.model_dir),
                *(("--model", config.model) if config.model is not None else ()),
                *("--data", config.data, "--resumed-after", str(resumed_after)),
                *_flags(config.evaluation.divided_by),
                *_flags({name: getattr(config.eviction, name) for name in _MEMORY}),
            ],
            log=self.log,
            environment=environment,
            stdin=stdin,
        )
        # This thread starts the later processes too. It lives as long as they are needed: a process
        # ends with the thread that started it.
        self._keeper = threading.Thread(target=self._keep_running, name="sidecar", daemon=True)
        self._keeper.start()

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return self._restarts

    def news(self) -> list[str]:
        """Returns the lines to show a user since the last call: why the process ended."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def finish(
        self, *, wait_secs: float, stop: threading.Event, say: Callable[[str], None]
    ) -> None:
        """Waits until the process has scored the run's last checkpoint.

        Args:
          wait_secs: the longest wait.
          stop: ends the wait, which is no error.
          say: shows a line when the process is started again.

        Raises:
          ClusterError: the process failed, or takes longer.
        """
        deadline = time.monotonic() + wait_secs
        while self._keeper.is_alive() and time.monotonic() < deadline:
            if stop.is_set():
                return
            for line in self.news():
                say(line)
            self._keeper.join(0.2)  # short waits: Python handles signals between them
        advice = f"see {self.log}; `python -m embedps.evaluate` scores the checkpoints again"
        if self._keeper.is_alive():
            raise ClusterError(
                f"waited {wait_secs:.0f} s for the evaluator to score the last checkpoint: {advice}"
            )
        if self._code != 0:
            raise ClusterError(f"{self._how_it_ended(self._code)}; {advice}")

    def close(self) -> None:
        """Ends the process."""
        self._closed.set()
        self._process.close()

    def _keep_running(self) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            code = self._process.wait()
            failures = failures + 1 if time.monotonic() - began < _HEALTHY_SECS else 1
            pause = min(_MAX_PAUSE_SECS, 2.0 ** (failures - 1))
            gives_up = code == UsageError.exit_code or failures > _MAX_FAILURES
            if code != 0 and not self._closed.is_set():
                then = "training goes on without it" if gives_up else "it is started again"
                with self._lock:
                    self._news.append(f"{self._how_it_ended(code)}; {then}; see {self.log}")
            if code == 0 or gives_up or self._closed.wait(pause):
                self._code = code
                return
            if not self._process.start():
                return
            self._restarts += 1

    def _how_it_ended(self, code: int) -> str:
        said = f": {self._process.last_line()}" if code >= 0 else ""
        return f"the evaluator ended {how_it_ended(code)}{said}"


def _flags(options: Mapping[str, Any]) -> list[str]:
    values = {name: value for name, value in options.items() if value}
    flags = {"--" + name.replace("_", "-"): value for name, value in values.items()}
    return [
        str(each)
        for flag, value in flags.items()
        for each in (flag, *(value if isinstance(value, tuple) else (value,)))
    ]


def _pickled(recommender: Recommender, seed: int) -> IO[bytes]:
    try:
        data = cloudpickle.dumps((recommender, seed))
    except Exception as error:  # a user's objects may raise anything
        raise UsageError(
            f"eval='sidecar' scores in another process, and the recommender cannot be sent there "
            f"({type(error).__name__}: {error}): put the model into a module with Config and make, "
            "or use eval='inline' or 'none'"
        ) from error
    file = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the sidecar)
    file.write(data)
    file.flush()
    return file
