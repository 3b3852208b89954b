"""The evaluator's process beside a trainer's: started again when it dies, ended with it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

from embedps.checkpoint.objects import as_path, local_dir
from embedps.config import TrainConfig
from embedps.errors import ClusterError

_WELL_SECS = 60.0  # a process that lived for so long did not fail at its start
_MAX_FAILURES = 10  # in a row
_MAX_PAUSE_SECS = 30.0


class Sidecar:
    """Follows a run's checkpoints in a process of its own.

    It restores the chain when it is started again, after a pause that grows with each failure in a
    row; after too many it is left alone, which is no reason for training to end.
    """

    def __init__(self, config: TrainConfig, *, resumed_after: int) -> None:
        """Starts it; its output goes to MODEL_DIR/logs/evaluator.log.

        Args:
          config: of the run.
          resumed_after: the number up to which a final checkpoint is not this run's last.
        """
        logs = local_dir(as_path(config.model_dir)) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / "evaluator.log"
        self._command = [
            *(sys.executable, "-m", "embedps.evaluate", "--model-dir", config.model_dir),
            *("--model", config.model, "--data", config.data),
            *("--resumed-after", str(resumed_after)),
        ]
        self._restarts = 0
        self._code: int | None = None  # of the process that was the last
        self._closed = threading.Event()
        self._lock = threading.Lock()  # of the process, that none starts once this is closed
        self._process = self._start()
        # It starts the later processes too, and lives as long: a process ends with the thread that
        # started it.
        self._keeper = threading.Thread(target=self._keep, name="sidecar", daemon=True)
        self._keeper.start()

    def finish(self, *, wait_secs: float) -> int:
        """Waits until it has scored the run's last checkpoint; tells how often it was restarted.

        Args:
          wait_secs: how long at most; 0 does not wait, and is no error.

        Raises:
          ClusterError: it ended without, or takes longer.
        """
        if not wait_secs:
            return self._restarts
        print("waiting for the evaluator to score the last checkpoint", flush=True)
        deadline = time.monotonic() + wait_secs
        while self._keeper.is_alive() and time.monotonic() < deadline:
            self._keeper.join(0.2)  # in short waits, between which a signal is taken
        advice = f"see {self._log}; `python -m embedps.evaluate` scores the checkpoints again"
        if self._keeper.is_alive():
            raise ClusterError(
                f"waited {wait_secs:.0f} s for the evaluator to score the last checkpoint: {advice}"
            )
        if self._code != 0:
            raise ClusterError(f"the evaluator ended with code {self._code}: {advice}")
        return self._restarts

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
            if code == 0 or failures > _MAX_FAILURES or self._closed.wait(pause):
                self._code = code
                return
            with self._lock:
                if self._closed.is_set():
                    return
                self._restarts += 1
                self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = dict(os.environ, EMBEDPS_PARENT_PID=str(os.getpid()), PYTHONUNBUFFERED="1")
        environment.pop("TF_CONFIG", None)
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
