"""Trains while processes are killed at random: `python -m benchmarks.chaos --minutes 5 --seed S`.

Trains twice on 2 parameter servers, some workers and the evaluator: once undisturbed, once with
disturbances at random moments drawn from the seed. A disturbance hits one of these processes or the
client. It kills the process (SIGKILL), stops and resumes it (SIGSTOP, SIGCONT), or asks it to end
(SIGTERM). A client that ends is started again. The rows carry their numbers, so the last checkpoint
tells how often each row was visited.

The benchmark fails unless every row was visited in every epoch, no row was visited more often than
the repeated units allow, all checkpoints are valid, the AUC is within 0.005 of the undisturbed run,
and no process is left.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks import report
from benchmarks.row_visits import visits, write_dataset
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.verify import verify
from embedps.console import command_line
from embedps.engine.steps.ways import OnLostWorker, SyncMode
from embedps.errors import EmbedpsError
from embedps.run.summary import read_json

UNIT_ROWS = 4096
MAX_AUC_DIFFERENCE = 0.005
# Relative frequencies: workers are lost often on a cluster, clients rarely.
_WORKER_FREQUENCY = 3
_OTHER_FREQUENCIES = {"ps-0": 2, "ps-1": 2, "evaluator": 2, "client": 1}
ACTIONS = {"kill": 3, "stop": 2, "end": 1}
_SERVER_TIMEOUT_SECS = 5.0
_MAX_STOP_SECS = 8.0
_FLAGS = (
    *("--model=benchmarks.row_visits", "--batch-size=256", f"--unit-rows={UNIT_ROWS}"),
    *("--num-ps=2", "--num-workers=2", "--delta-secs=2", "--log-secs=5"),
    *(f"--server-timeout-secs={_SERVER_TIMEOUT_SECS}", "--grace-secs=20"),
    "--max-unit-deaths=1000",  # no unit kills: a random process does
    *("--sparse-learning-rate=0.02", "--dense-learning-rate=0.001"),
)


class ChaosError(EmbedpsError):
    """The run broke a guarantee."""


class Training:
    """A training command that is started again whenever it ends before training is finished."""

    def __init__(self, data: Path, model_dir: Path, *more: str) -> None:
        where = ("--data", str(data), "--model-dir", str(model_dir))
        self._command = [sys.executable, "-m", "embedps.train", *where, *_FLAGS, *more]
        self.model_dir = model_dir
        self.starts = 0
        self.codes: Counter[int] = Counter()
        self._process: subprocess.Popen[bytes] | None = None
        self.begin()

    def begin(self) -> None:
        """Starts the command."""
        self.starts += 1
        with open(self.model_dir.with_suffix(".log"), "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def ended(self) -> bool:
        """Tells whether training is finished; restarts the command if only the process ended."""
        process = self._process
        if process is None:
            return True
        if process.poll() is None:
            return False
        self.codes[process.returncode] += 1
        if process.returncode in (1, 2):
            raise ChaosError(f"training ended with code {process.returncode}: {self.log()}")
        if read_json(self.model_dir / "summary.json").get("finished"):
            self._process = None
            return True
        self.begin()
        return False

    def wait(self, secs: float) -> bool:
        """Waits up to `secs` for training to finish; returns whether it did."""
        deadline = time.monotonic() + secs
        while not (done := self.ended()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return done

    def pid(self, target: str) -> int | None:
        """Finds the process of a server, the evaluator or the client; None if it does not run."""
        if target == "client":
            return self._process.pid if self._process is not None else None
        return next(iter(pids_writing(f"{self.model_dir}/logs/{target}.log")), None)

    def log(self) -> str:
        """Returns the last lines of the command's output."""
        lines = self.model_dir.with_suffix(".log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-15:])

    def end(self) -> int:
        """Tells the command to end, and waits until it did; returns its code."""
        if self._process is None:
            return 0
        self._process.terminate()
        code, self._process = self._process.wait(), None
        self.codes[code] += 1
        return code

    def close(self) -> None:
        """Kills the command."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def pids_writing(path: str) -> list[int]:
    """Finds the live processes whose stdout is a file at or below a path."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and os.readlink(folder / "fd" / "1").startswith(path):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def disturb(
    training: Training, *, workers: int, secs: float, pause_secs: float, seed: int
) -> list[str]:
    """Disturbs processes for `secs` seconds once they run; returns a line per disturbance."""
    rng = random.Random(seed)
    targets = {f"worker-{i}": _WORKER_FREQUENCY for i in range(workers)} | _OTHER_FREQUENCIES
    servers = [target for target in targets if target.startswith(("worker-", "ps-"))]
    while not all(map(training.pid, servers)) and not training.wait(0.1):
        pass  # a slow start is no time of disturbance
    began = time.monotonic()
    done = []
    while (now := time.monotonic() - began) < secs and not training.ended():
        target = rng.choices(list(targets), list(targets.values()))[0]
        action = rng.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        stop_secs = rng.uniform(0.5, _MAX_STOP_SECS)
        pause = rng.uniform(0.5, 1.5) * pause_secs
        pid = training.pid(target)
        if pid is not None:
            done.append(f"{now:.1f} s: {action} {target}")
            print(done[-1], flush=True)
            try:
                if action == "stop":
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(stop_secs)
                    os.kill(pid, signal.SIGCONT)
                else:
                    os.kill(pid, signal.SIGKILL if action == "kill" else signal.SIGTERM)
            except ProcessLookupError:
                pass  # the client killed it because it did not answer
        training.wait(pause)
    return done


def examine(training: Training, *, num_rows: int, epochs: int) -> dict[str, Any]:
    """Checks a finished run and summarizes it.

    Raises:
      ChaosError: a row was visited too rarely or too often, a checkpoint is not valid, or a process
        is left.
    """
    model_dir = training.model_dir
    summary = read_json(model_dir / "summary.json")
    counts = visits(model_dir, num_rows)
    repeated = summary["units"]["repeated"]
    repeats = int(np.sum(counts)) - epochs * num_rows
    problems = []
    if counts.min() < epochs:
        problems.append(f"{int(np.sum(counts < epochs))} rows were not visited in every epoch")
    if repeats > repeated * UNIT_ROWS:
        problems.append(f"{repeats} repeated visits are more than {repeated} units")
    directory = CheckpointDirectory(model_dir)
    problems += map(str, verify(directory, directory.numbers()).problems)
    left = pids_writing(f"{model_dir}/")
    if left:
        problems.append(f"processes {left} are left")
    if problems:
        raise ChaosError("; ".join(problems))
    return {
        "starts": training.starts,
        "exit_codes": {str(k): v for k, v in sorted(training.codes.items())},
        "sync": summary["sync"],
        "units": summary["units"],
        "repeated_visits": repeats,
        "visits": epochs * num_rows,
        "fewest_visits_of_a_row": int(counts.min()),
        "most_visits_of_a_row": int(counts.max()),
        "recoveries": summary["recoveries"],
        "worker_restarts": summary["worker_restarts"],
        # Those of the last client.
        "steps_by_worker": {w: each["steps"] for w, each in summary["staleness"].items()},
        "auc": summary["evaluation"]["auc"],
        "manifests_verified": len(directory.numbers()),
    }


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="minutes of disturbance (default: 5)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the disturbances (default: 1)")
    parser.add_argument(
        "--rows", type=int, default=100_000, help="rows per epoch (default: 100000)"
    )
    parser.add_argument("--epochs", type=int, default=0, help="0: 10 per minute (default: 0)")
    parser.add_argument(
        "--pause-secs",
        type=float,
        default=8.0,
        help="seconds between two disturbances (default: 8)",
    )
    parser.add_argument(
        "--sync", choices=get_args(SyncMode), default="none", help="of the runs (default: none)"
    )
    parser.add_argument(
        "--on-lost-worker",
        choices=get_args(OnLostWorker),
        default="repeat",
        help="of the runs; continue scores inline, so that no two epochs overlap (default: repeat)",
    )
    count = command_line.number(int, least=1, most=64)
    parser.add_argument("--workers", type=count, default=2, help="of the runs (default: 2)")
    parser.add_argument(
        "--backup-workers",
        type=command_line.number(int, least=0, most=63),
        default=0,
        help="of the runs, with --on-lost-worker continue (default: 0)",
    )
    parser.add_argument("--output", type=report.output_file, default=report.RESULTS / "chaos.json")
    options = parser.parse_args(arguments)
    epochs = options.epochs or max(1, round(10 * options.minutes))
    environment = report.environment()
    limit = 600 + 240 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        shards = [options.rows // 4] * 3 + [options.rows - 3 * (options.rows // 4)]
        write_dataset(data, train=shards, evaluation=[40_000], seed=options.seed)
        results = {}
        for name in ("calm", "chaos"):
            flags: tuple[str, ...] = (f"--epochs={epochs}", f"--sync={options.sync}")
            flags += (f"--num-workers={options.workers}",)
            flags += (f"--backup-workers={options.backup_workers}",)
            if options.on_lost_worker == "continue":
                # A row that one step has of two epochs is updated once: it would miss a visit.
                flags += ("--on-lost-worker=continue", "--eval=inline")
            training = Training(data, Path(folder) / name, *flags)
            began = time.monotonic()
            try:
                done: list[str] = []
                if name == "chaos":
                    done = disturb(
                        training,
                        workers=options.workers,
                        secs=60 * options.minutes,
                        pause_secs=options.pause_secs,
                        seed=options.seed,
                    )
                if not training.wait(limit):
                    raise ChaosError(
                        f"training did not finish within {limit:.0f} s: {training.log()}"
                    )
                secs = round(time.monotonic() - began, 1)
                results[name] = examine(training, num_rows=options.rows, epochs=epochs)
                results[name] |= {"wall_secs": secs, "done_to_it": done}
            finally:
                training.close()
    difference = results["chaos"]["auc"] - results["calm"]["auc"]
    print(
        f"{len(results['chaos']['done_to_it'])} disturbances: every row visited in each of "
        f"{epochs} epochs, {results['chaos']['repeated_visits']} visits repeated of "
        f"{epochs * options.rows}; AUC {results['chaos']['auc']:.5f}, undisturbed "
        f"{results['calm']['auc']:.5f}",
        flush=True,
    )
    report.write(
        options.output,
        {
            "benchmark": "chaos",
            "command": f"python -m benchmarks.chaos --minutes {options.minutes:g} "
            f"--seed {options.seed} --rows {options.rows} --epochs {epochs} "
            f"--pause-secs {options.pause_secs:g} --sync {options.sync} "
            f"--on-lost-worker {options.on_lost_worker} --workers {options.workers} "
            f"--backup-workers {options.backup_workers}",
            "environment": environment,
            "results": results,
            "auc_difference": difference,
        },
    )
    if abs(difference) > MAX_AUC_DIFFERENCE:
        raise ChaosError(f"the AUCs differ by {difference:.4f}, more than {MAX_AUC_DIFFERENCE}")
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
