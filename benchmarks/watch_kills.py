"""Kills a run that watches a directory, and its server: `python -m benchmarks.watch_kills`.

A run on --num-ps parameter servers and 2 workers trains files that appear in a directory, and a
server follows it. Meanwhile --kills processes are killed (SIGKILL), drawn from the seed: the
client, a worker, a parameter server, or the serving process. The client and the serving process are
started again. The examples carry their numbers, so the last checkpoint tells how often each was
trained.

The benchmark fails unless every example of every file was trained, none was trained more often than
the repeated units in the manifest allow, all checkpoints are valid, and the server answers from the
newest manifest what `embedps.load` gives for it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import embedps
from benchmarks.chaos import UNIT_ROWS, ChaosError, Training, pids_writing
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, figures
from benchmarks.row_visits import CARDINALITIES, make_rows, visits, write_dataset
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.verify import verify
from embedps.config_fields import option
from embedps.run.summary import read_json
from embedps.scheduling.arrivals import Arrivals

_FIRST_ROWS, _HELD_OUT = 2 * UNIT_ROWS, 500
# Relative frequencies: workers are lost often on a cluster, clients rarely.
_TARGETS = {"worker-0": 2, "worker-1": 2, "ps-0": 2, "client": 2, "server": 3}
_WAIT_SECS = 240.0
_RESTART_SECS = 0.2
_ENDS = 3
_RESUMES = "resumes from checkpoint"
_MODEL = "benchmarks.row_visits"


class Server:
    """A serving process that is started again when it ends, and a client that asks all the time."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        self._stop = threading.Event()
        self.starts = 0
        self.answers: Counter[str] = Counter()
        self.address = ""
        self.process: subprocess.Popen[str] | None = None
        self._threads = [threading.Thread(target=run) for run in (self._serve, self._ask)]

    def __enter__(self) -> Server:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self.process is not None:
            self.process.terminate()
        for thread in self._threads:
            thread.join()

    def ask(self, records: dict[str, Any]) -> tuple[int, list[float]]:
        """Asks for scores; gives the number of the manifest that answers, and the scores."""
        request = urllib.request.Request(
            f"http://{self.address}/v1/models/m:predict",
            data=json.dumps({"inputs": records}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.headers["Embedps-Manifest"]), json.load(answer)["outputs"]

    def _serve(self) -> None:
        command = [sys.executable, "-m", "embedps.serve", f"--model-dir={self._model_dir}"]
        command += [f"--model={_MODEL}", "--name=m", "--port=0", "--rest-port=0"]
        while not self._stop.wait(_RESTART_SECS):
            self.starts += 1
            with open(self._model_dir.with_suffix(".server.log"), "ab") as log:
                self.process = subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            for line in self.process.stdout or ():
                if line.startswith("serves "):
                    self.address = line.split()[-1].removeprefix("http://").rstrip("/.")
            self.process.wait()

    def _ask(self) -> None:
        while not self._stop.wait(0.1):
            try:
                self.ask(example())
                self.answers["answered"] += 1
            except (OSError, ValueError):  # killed, or it starts
                self.answers["not answered"] += 1


def example() -> dict[str, Any]:
    """Makes a few records."""
    return {"I1": [0.5, 1.5], **{name: [7, 11] for name in (*CARDINALITIES, "row")}}


def kill(
    training: Training, server: Server, *, kills: int, pause_secs: float, seed: int
) -> list[str]:
    """Kills processes at random moments; returns a line per kill."""
    rng = random.Random(seed)
    targets = dict(_TARGETS)
    if training.pid("ps-1") is not None:
        targets["ps-1"] = targets["ps-0"]
    began = time.monotonic()
    done: list[str] = []
    while len(done) < kills:
        training.wait(rng.uniform(0.5, 1.5) * pause_secs)
        target = rng.choices(list(targets), list(targets.values()))[0]
        if target == "server":
            pid = server.process.pid if server.process is not None else None
        else:
            pid = training.pid(target)
        if pid is None:  # not yet started again
            continue
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        done.append(f"{time.monotonic() - began:.1f} s: {target}")
        print(done[-1], flush=True)
    return done


def wait_for(condition: Callable[[], bool], what: str, training: Training) -> None:
    """Waits until a condition holds; starts the run again meanwhile if it ended."""
    deadline = time.monotonic() + _WAIT_SECS
    while not condition():
        if time.monotonic() > deadline:
            raise ChaosError(f"{what} did not come in {_WAIT_SECS:.0f} s: {training.log()}")
        training.wait(0.2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The run, the files, and the kills."""

    kills: int = option(20, "in all", least=1)
    seed: int = option(1, "of the kills", least=0)
    num_ps: int = option(2, "parameter servers of the run", least=1)
    files: int = option(150, "that appear", least=1)
    interval_secs: float = option(1.0, "between two files", above=0)
    pause_secs: float = option(8.0, "between two kills", above=0)


def measure(config: Config, folder: Path) -> dict[str, Any]:
    """Trains, serves and kills; then checks what was trained and what is served."""
    data, model_dir, inbox = folder / "data", folder / "model", folder / "in"
    inbox.mkdir()
    write_dataset(data, train=[_FIRST_ROWS], evaluation=[_HELD_OUT], seed=config.seed)
    num_rows = _FIRST_ROWS + config.files * UNIT_ROWS
    flags = (f"--watch={inbox}", "--eval=none", f"--num-ps={config.num_ps}", "--delta-secs=1")
    training = Training(data, model_dir, *flags)
    directory = CheckpointDirectory(model_dir)
    try:
        wait_for(lambda: model_dir.exists() and bool(directory.numbers()), "a commit", training)
        stop = threading.Event()
        feeder = threading.Thread(target=_feed, args=(config, inbox, stop))
        with Server(model_dir) as server:
            wait_for(lambda: bool(server.address), "a server", training)
            feeder.start()
            try:
                killed = kill(
                    training,
                    server,
                    kills=config.kills,
                    pause_secs=config.pause_secs,
                    seed=config.seed,
                )
            finally:
                stop.set()  # the files that are left appear at once
                feeder.join()

            def all_done() -> bool:
                last = directory.latest()
                return last is not None and last.ledger["prefix"] == num_rows // UNIT_ROWS

            wait_for(all_done, "the last file's checkpoint", training)
            end(training)
            served = _check_server(server, directory)
            found = examine(model_dir, num_rows=num_rows, files=config.files)
    finally:
        training.close()
    left = pids_writing(f"{model_dir}/")
    if left:
        raise ChaosError(f"processes {left} are left")
    kinds = Counter(line.split()[-1] for line in killed)
    return {
        "kills": dict(sorted(kinds.items())),
        "done_to_it": killed,
        "client_starts": training.starts,
        "client_exit_codes": {str(k): v for k, v in sorted(training.codes.items())},
        "server_starts": server.starts,
        "requests": dict(server.answers),
        **found,
        **served,
    }


def end(training: Training) -> None:
    """Ends the run; one that was about to recover from a kill resumes first.

    Raises:
      ChaosError: it does not end well.
    """
    log = training.model_dir.with_suffix(".log")
    for _ in range(_ENDS):
        if training.end() == 0:
            return
        resumed = log.read_text(errors="replace").count(_RESUMES)
        training.begin()
        while log.read_text(errors="replace").count(_RESUMES) == resumed:
            training.wait(0.2)
    raise ChaosError(f"training, told to end, does not end well: {training.log()}")


def examine(model_dir: Path, *, num_rows: int, files: int) -> dict[str, Any]:
    """Checks what a run trained and committed.

    Raises:
      ChaosError: an example was not trained, or too often; or a checkpoint is not valid.
    """
    directory = CheckpointDirectory(model_dir)
    last = directory.latest()
    if last is None:
        raise ChaosError("there is no checkpoint")
    # The numbers of the held-out examples lie between those of the dataset and of the files.
    counts = visits(model_dir, num_rows + _HELD_OUT)
    trained = np.concatenate([counts[:_FIRST_ROWS], counts[_FIRST_ROWS + _HELD_OUT :]])
    repeats = int(trained.sum()) - num_rows
    repeated = last.ledger["repeated"]
    names = [each.path for each in Arrivals(model_dir).files]
    problems = list(map(str, verify(directory, directory.numbers()).problems))
    if trained.min() < 1:
        problems.append(f"{int((trained < 1).sum())} examples were not trained")
    if repeats > repeated * UNIT_ROWS:
        problems.append(f"{repeats} repeated examples are more than {repeated} units")
    if sorted(names) != [f"{i:06d}.parquet" for i in range(files)]:
        problems.append(f"the list of arrivals has {len(names)} files, not each of {files} once")
    if problems:
        raise ChaosError("; ".join(problems))
    return {
        "files": files,
        "examples": num_rows,
        "examples_lost": 0,
        "examples_repeated": repeats,
        "most_visits_of_an_example": int(trained.max()),
        "units_repeated": repeated,
        "units": read_json(model_dir / "summary.json")["units"],
        "manifest_ledger_bytes": len(json.dumps(last.ledger)),
        "manifests_verified": len(directory.numbers()),
    }


def _check_server(server: Server, directory: CheckpointDirectory) -> dict[str, Any]:
    """Compares the server's answer with what the newest manifest's model gives."""
    model = embedps.load(directory.path, model=_MODEL)
    expected = model.predict(example())["score"].tolist()
    deadline = time.monotonic() + _WAIT_SECS
    number, scores = -1, [0.0]
    while number != model.number:
        if time.monotonic() > deadline:
            raise ChaosError(f"the server answers from manifest {number}, not {model.number}")
        time.sleep(0.1)
        try:
            number, scores = server.ask(example())
        except (OSError, ValueError):
            continue
    if np.asarray(scores, np.float32).tolist() != expected:
        raise ChaosError(f"manifest {number} gives {expected}, the server answers {scores}")
    return {"newest_manifest": model.number, "served_manifest": number, "scores_equal": True}


def _feed(config: Config, inbox: Path, stop: threading.Event) -> None:
    for i in range(config.files):
        first = _FIRST_ROWS + _HELD_OUT + i * UNIT_ROWS
        table = make_rows(UNIT_ROWS, seed=config.seed, first_row=first)
        pq.write_table(table, inbox / f".{i:06d}")
        os.replace(inbox / f".{i:06d}", inbox / f"{i:06d}.parquet")
        stop.wait(config.interval_secs)


def _measure(config: Config, run: Run) -> Content:
    with tempfile.TemporaryDirectory() as folder:
        return {"results": measure(config, Path(folder))}


def layout(content: Content) -> list[Part]:
    """Lays out what the kills cost."""
    r = content["results"]
    kills = ", ".join(f"{who}: {count}" for who, count in r["kills"].items())
    rows = [
        ["kills", kills],
        ["examples lost", f"{r['examples_lost']:,} of {r['examples']:,}", "0"],
        ["examples trained again", f"{r['examples_repeated']:,}"],
        ["units repeated", f"{r['units_repeated']}"],
        ["requests answered, and not", "{answered:,}; {not answered:,}".format(**r["requests"])],
        ["starts of the client, and of the server", f"{r['client_starts']}; {r['server_starts']}"],
    ]
    return [figures(f"{r['files']} files of a run with --watch, and its server", rows)]


BENCHMARK = Benchmark(config=Config, measure=_measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
