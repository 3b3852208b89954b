"""Asks a server for the best of many items: `python -m benchmarks.retrieval_serving`.

It trains two towers of 64 floats over --items items, serves them, and asks for the best 100 items
of one user at a time, by an open loop (benchmarks.open_loop). First each request compares all
items, then an IVF finds candidates. Beside the exact search, an eviction removes items, and another
run trains on: it brings items back and changes others. Each manifest's time is from its commit
until a request is answered with it. An answer is of one manifest, so from then on what it adds is
found, and what it removes is not.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks import open_loop, report
from benchmarks.serving import Server, running
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.evict import Selection, evict
from embedps.console import command_line
from embedps.console.command_line import number
from embedps.run.run_config import read_run
from embedps.serving.server import messages
from embedps.serving.server.tensor_values import fill
from pipelines.ingestion.interactions import Options, make_dataset

DIM, K, ITEMS_PER_USER = 64, 100, 20
_NAME = "items"
_POLL_SECS = 0.02
_WAIT_SECS = 600.0
_DIFFERENT = 200  # requests, which are sent in turn


def make_request(user: int) -> bytes:
    """Makes a request for the best items of a user."""
    request = messages.PredictRequest()
    request.model_spec.name = _NAME
    request.model_spec.signature_name = "top_k"
    for name, value in {"user": user, "k": K}.items():
        fill(request.inputs[name], np.full(1, value, np.int64))
    return bytes(request.SerializeToString())


def write_interactions(folder: Path, items: int) -> None:
    """Writes which items users chose: each item once, and some of them to hold out."""
    rng, users = np.random.default_rng(0), items // ITEMS_PER_USER
    chosen = rng.permutation(users * ITEMS_PER_USER).reshape(users, ITEMS_PER_USER)
    for name, rows in (("train", chosen), ("test", chosen[:8, :1])):
        lines = (" ".join(map(str, (user, *row))) for user, row in enumerate(rows))
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def prepare(folder: Path, items: int) -> None:
    """Makes a dataset and trains on it."""
    write_interactions(folder, items)
    make_dataset(
        Options(
            train=(str(folder / "train.txt"),),
            test=str(folder / "test.txt"),
            output=str(folder / "set"),
            max_history=1,
        )
    )
    train(folder, epochs=1)


def train(folder: Path, *, epochs: int) -> None:
    """Trains up to a number of epochs; a run resumes the one before."""
    flags = {
        "data": folder / "set",
        "model-dir": folder / "model",
        "model": "two_tower",
        "embedding-dim": DIM,
        "epochs": epochs,
        "eval": "none",
        "delta-secs": 2,
        "keep-secs": 3600,
        "sparse-learning-rate": 0.1,
        "rebase": "one-shot",
    }
    command = ["-m", "embedps.train", *(f"--{name}={value}" for name, value in flags.items())]
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)


class Watch:
    """Asks all the time, and notes when each manifest was first seen in an answer."""

    def __init__(self, address: str) -> None:
        self.seen: dict[int, float] = {}
        self._channel = grpc.insecure_channel(address)
        self._predict = self._channel.unary_unary(open_loop.PREDICT)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def best(self) -> tuple[int, npt.NDArray[np.int64]]:
        """Gives the manifest that answers, and the best items of a user."""
        response = messages.PredictResponse.FromString(self._predict(make_request(0)))
        return response.model_spec.version.value, tf.make_ndarray(response.outputs["ids"])[0]

    def _run(self) -> None:
        while not self._ended.wait(_POLL_SECS):
            found, _ = self.best()
            self.seen.setdefault(found, time.time())

    def until(self, wanted: int) -> None:
        """Waits until a manifest was seen.

        Raises:
          TimeoutError: it is not seen.
        """
        end = time.monotonic() + _WAIT_SECS
        while max(self.seen, default=-1) < wanted:
            if time.monotonic() > end:
                raise TimeoutError(f"manifest {wanted} is not served after {_WAIT_SECS:g} s")
            time.sleep(_POLL_SECS)

    def close(self) -> None:
        """Ends to ask."""
        self._ended.set()
        self._thread.join()
        self._channel.close()


def follow(server: Server, folder: Path) -> dict[str, Any]:
    """Measures how long changes take until they are found."""
    directory = CheckpointDirectory(folder / "model")
    watch = Watch(server.grpc)
    _, before = watch.best()
    norm = 0.5
    while (removed := evict(directory, "item", Selection(below_norm=norm))).manifest is None:
        norm *= 1.1  # until it is more than that of some
    removal = removed.manifest
    watch.until(removal.number)
    train(folder, epochs=read_run(folder / "model").config.epochs + 1)
    watch.until(max(directory.numbers()))
    _, after = watch.best()
    watch.close()
    waits = visible_secs(
        watch.seen,
        {n: directory.read(n).wall_time for n in directory.numbers() if n > removal.number},
    )
    rows = [sum(s.rows for s in directory.read(n).chain if s.number == n) for n in waits]
    return {
        "removed": removed.removed,
        "removed_secs": round(watch.seen[removal.number] - removal.wall_time, 3),
        "rows_per_delta": int(np.median(rows)),
        "added_or_changed_secs": report.spread([*waits.values()]),
        "best_items_that_changed": len(np.setdiff1d(after, before)),
    }


def visible_secs(seen: Mapping[int, float], committed: Mapping[int, float]) -> dict[int, float]:
    """Gives by manifest the seconds from its commit to the first answer that has its changes."""
    return {
        number: min(at for other, at in seen.items() if other >= number) - when
        for number, when in committed.items()
    }


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    options = _parser().parse_args(arguments)
    environment, found = report.environment(), {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "model").exists():
            prepare(folder, options.items)
        users = np.random.default_rng(1).integers(options.items // ITEMS_PER_USER, size=_DIFFERENT)
        requests = [make_request(int(user)) for user in users]
        where = [f"--model-dir={folder / 'model'}", f"--name={_NAME}"]
        for name, above in (("exact", 10**9), ("ivf", 0)):
            with running("embedps.serve", *where, f"--ivf-above={above}") as server:
                load = open_loop.offer(server.grpc, requests, options.rate, options.secs, seed=1)
                found[name] = {
                    "start_secs": round(server.start_secs, 1),
                    "said": server.said,
                    **load.summary(options.rate),
                    **server.memory(),
                }
                if name == "exact" and options.follow == "yes":
                    found["following"] = follow(server, folder) | server.memory()
            print(found, flush=True)
    report.write(
        options.output,
        {
            "benchmark": "retrieval_serving",
            "command": shlex.join(["python", "-m", "benchmarks.retrieval_serving", *arguments]),
            "environment": environment,
            "items": options.items,
            "dim": DIM,
            "k": K,
            "results": found,
        },
    )
    return 0


def _parser() -> command_line.Parser:
    parser = command_line.Parser(prog="python -m benchmarks.retrieval_serving", description=__doc__)
    number_of = number(int, least=1000, most=10**8)
    parser.add_argument("--items", type=number_of, default=1_000_000, metavar="N")
    parser.add_argument("--rate", type=number(float, above=0, most=1e6), default=10.0, metavar="X")
    parser.add_argument("--secs", type=number(float, above=0, most=3600), default=30.0, metavar="X")
    parser.add_argument(
        "--follow", choices=("yes", "no"), default="yes", help="train on, and time the changes"
    )
    parser.add_argument("--work", type=Path, metavar="DIR", help="keeps the dataset and the model")
    parser.add_argument(
        "--output", type=report.output_file, default=report.RESULTS / "retrieval_serving.json"
    )
    return parser


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
