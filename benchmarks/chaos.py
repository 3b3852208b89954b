"""Trains while processes are killed at random: `python -m benchmarks.chaos`.

Trains twice on 2 parameter servers, some workers and the evaluator: once undisturbed, once with
disturbances at random moments drawn from the seed. A disturbance hits one of these processes or the
client. It kills the process (SIGKILL), stops and resumes it (SIGSTOP, SIGCONT), or asks it to end
(SIGTERM). A client that ends is started again. The rows carry their numbers, so the last checkpoint
tells how often each row was visited.

The benchmark fails unless every row was visited in every epoch, no row was visited more often than
the repeated units allow, all checkpoints are valid, the AUC is within 0.005 of the undisturbed run,
and no process is left. With --kill-servers and --sync full, the tables and the network must have
the bits of the undisturbed run.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table
from benchmarks.row_visits import visits, write_dataset
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_dense
from embedps.checkpoint.tools.replay import stream_table
from embedps.checkpoint.tools.verify import verify
from embedps.config_fields import option
from embedps.engine.steps.ways import OnLostWorker, SyncMode
from embedps.errors import EmbedpsError
from embedps.run.summary import read_json

UNIT_ROWS = 4096
MAX_AUC_DIFFERENCE = 0.005
# Relative frequencies: workers are lost often on a cluster, clients rarely.
_WORKER_FREQUENCY = 3
_OTHER_FREQUENCIES = {"ps-0": 2, "ps-1": 2, "evaluator": 2, "client": 1}
ACTIONS = {"kill": 3, "stop": 2, "end": 1}
_SERVERS, _KILLS = {"ps-0": 1, "ps-1": 1}, {"kill": 1}  # with --kill-servers
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

    def checkpoints(self) -> int:
        """Returns the number of the newest checkpoint; 0 if there is none."""
        return max(CheckpointDirectory(self.model_dir).numbers(), default=0)

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


def disturb(training: Training, config: Config) -> list[str]:
    """Disturbs processes once they run; returns a line per disturbance."""
    rng = random.Random(config.seed)
    workers = {f"worker-{i}": _WORKER_FREQUENCY for i in range(config.workers)}
    targets = workers | _OTHER_FREQUENCIES
    hit, actions = (_SERVERS, _KILLS) if config.kill_servers else (targets, ACTIONS)
    servers = [target for target in targets if target.startswith(("worker-", "ps-"))]
    while not all(map(training.pid, servers)) and not training.wait(0.1):
        pass  # a slow start is no time of disturbance
    began = time.monotonic()
    done = []
    saved = 0
    while (now := time.monotonic() - began) < 60 * config.minutes and not training.ended():
        target = rng.choices(list(hit), list(hit.values()))[0]
        action = rng.choices(list(actions), list(actions.values()))[0]
        stop_secs = rng.uniform(0.5, _MAX_STOP_SECS)
        pause = rng.uniform(0.5, 1.5) * config.pause_secs
        if config.kill_servers:
            # A run whose recoveries come to no checkpoint ends.
            while training.checkpoints() <= saved and not training.wait(0.1):
                pass
            saved = training.checkpoints()
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The runs, and what is done to one of them."""

    minutes: float = option(5.0, "of disturbances", above=0)
    seed: int = option(1, "of the disturbances", least=0)
    rows: int = option(100_000, "per epoch", least=4)
    epochs: int = option(0, "of each run; 0 is 10 per minute", least=0)
    pause_secs: float = option(8.0, "between two disturbances", above=0)
    sync: SyncMode = option("none", "of the runs")
    on_lost_worker: OnLostWorker = option(
        "repeat", "of the runs; continue scores inline, so that no two epochs overlap"
    )
    recover_in_place: bool = option(True, "go on beside parameter servers that are lost")
    workers: int = option(2, "of the runs", least=1, most=64)
    backup_workers: int = option(0, "of the runs, with --on-lost-worker continue", least=0, most=63)
    kill_servers: bool = option(
        False, "once there is a checkpoint since the last one, and disturb nothing else"
    )
    max_memory_bytes: int = option(
        0, "of tables on each server, the other rows on its disk; 0 is all", least=0
    )


def measure(config: Config, run: Run) -> Content:
    """Trains undisturbed, then disturbed.

    Raises:
      ChaosError: a run does not finish, or what it leaves is not as it must be.
    """
    epochs = config.epochs or max(1, round(10 * config.minutes))
    limit = 600 + 240 * config.minutes
    flags = [f"--epochs={epochs}", f"--sync={config.sync}", f"--num-workers={config.workers}"]
    flags.append(f"--backup-workers={config.backup_workers}")
    flags += ["--no-recover-in-place"] * (not config.recover_in_place)
    if config.on_lost_worker == "continue":
        # A row that one step has of two epochs is updated once: it would miss a visit.
        flags += ["--on-lost-worker=continue", "--eval=inline"]
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        shards = [config.rows // 4] * 3 + [config.rows - 3 * (config.rows // 4)]
        write_dataset(data, train=shards, evaluation=[40_000], seed=config.seed)
        for name in ("calm", "chaos"):
            tier: list[str] = []
            if config.max_memory_bytes:
                tier = [
                    f"--max-memory-bytes={config.max_memory_bytes}",
                    f"--spill-dir={folder}/spill",
                    "--stats-secs=2",  # a client that resumes with nothing left writes none
                ]
            training = Training(data, Path(folder) / name, *flags, *tier)
            began = time.monotonic()
            done: list[str] = []
            try:
                if name == "chaos":
                    done = disturb(training, config)
                if not training.wait(limit):
                    told = f"training did not finish within {limit:.0f} s"
                    raise ChaosError(f"{told}: {training.log()}")
                secs = round(time.monotonic() - began, 1)
                results[name] = examine(training, num_rows=config.rows, epochs=epochs)
                results[name] |= {"wall_secs": secs, "done_to_it": done}
                if tier:
                    results[name]["tier"] = _read_tier(training)
            finally:
                training.close()
        differ = _values_that_differ(Path(folder) / "calm", Path(folder) / "chaos")
    difference = results["chaos"]["auc"] - results["calm"]["auc"]
    content: dict[str, Any] = {"results": results, "auc_difference": difference}
    if config.sync == "full":
        content |= {"values_that_differ": differ, "must_be_equal": config.kill_servers}
    return content


def _values_that_differ(first: Path, second: Path) -> int:
    """Counts the values of tables and networks that differ in the last checkpoints of two runs."""
    tables, networks = zip(*map(_last_checkpoint, (first, second)), strict=True)
    differ = 0
    for left, right in [*_pairs(*tables), *_pairs(*networks)]:
        is_like = left.shape == right.shape
        differ += int(np.sum(left != right)) if is_like else max(left.size, right.size)
    return differ


def _pairs(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    none = np.empty(0)
    return [(first.get(k, none), second.get(k, none)) for k in first.keys() | second.keys()]


def _last_checkpoint(model_dir: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Reads all columns of all tables, sorted by id, and the network."""
    directory = CheckpointDirectory(model_dir)
    manifest = directory.latest()
    if manifest is None or manifest.dense is None:
        raise ChaosError(f"{model_dir} has no checkpoint")
    columns = {}
    for table in manifest.tables:
        _, batches = stream_table(directory, manifest, table["name"])
        rows = pa.Table.from_batches(batches).sort_by("id").combine_chunks()
        for name in rows.column_names:
            column = rows.column(name)
            while pa.types.is_nested(column.type):
                column = pc.list_flatten(column)
            columns[f"{table['name']}.{name}"] = column.to_numpy()
    network = read_dense(directory.file(manifest.dense))
    return columns, dict(network)


def layout(content: Content) -> list[Part]:
    """Lays out the visits and the AUC of both runs, and what was done to one."""
    runs = content["results"]
    done = Counter(re.sub(r"^.*? s: |-\d+", "", line) for line in runs["chaos"]["done_to_it"])
    rows = [
        [
            name,
            f"{run['wall_secs']:.0f} s",
            f"{run['starts']}",
            f"{run['visits']:,}",
            f"{run['fewest_visits_of_a_row']} to {run['most_visits_of_a_row']}",
            f"{run['repeated_visits']:,}",
            f"{len(run['recoveries'])}",
            f"{run['auc']:.4f}",
        ]
        for name, run in (("undisturbed", runs["calm"]), ("disturbed", runs["chaos"]))
    ]
    heads = ["run", "time", "starts of the client", "visits of rows", "of each row"]
    heads += ["repeated visits", "recoveries of servers", "AUC"]
    told = ", ".join(f"{what}: {count}" for what, count in sorted(done.items()))
    parts: list[Part] = [Table(heads=heads, rows=rows), f"{done.total()} disturbances. {told}."]
    if (differ := content.get("values_that_differ")) is not None:
        parts.append(f"{differ:,} values of tables and network differ.")
    return parts


def _read_tier(training: Training) -> Mapping[str, Any]:
    tier: Mapping[str, Any] = read_json(training.model_dir / "statistics.json")["tier"]
    if not tier["read"] or tier["evicted"]:
        raise ChaosError(f"rows must come back from disk, and none be evicted, but got {tier}")
    return tier


def _failure(content: Content) -> str | None:
    off = content["auc_difference"]
    is_near = abs(off) <= MAX_AUC_DIFFERENCE
    if content.get("must_be_equal") and (differ := content["values_that_differ"]):
        return f"{differ:,} values differ from those of the undisturbed run"
    return None if is_near else f"the AUCs differ by {off:.4f}, more than {MAX_AUC_DIFFERENCE}"


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout, failure=_failure)


if __name__ == "__main__":
    main(BENCHMARK)
