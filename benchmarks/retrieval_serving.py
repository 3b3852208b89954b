"""Asks a server for the best of many items: `python -m benchmarks.retrieval_serving`.

It trains two towers of 64 floats over --items items, serves them, and asks for the best 100 items
of one user at a time, by an open loop (benchmarks.open_loop). First each request compares all
items, then an IVF finds candidates. Beside the exact search, a commit comes every --commit-secs
seconds: --commits of each of --changes items, one in fifty of them new. They were written before
(benchmarks.serving_run): a trainer has cores of its own. Then an eviction removes items. Each
manifest's time is from its commit until a request is answered with it. An answer is of one
manifest, so from then on what it adds is found, and what it removes is not.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

import embedps

# isort: split
import dataclasses

import tensorflow as tf

from benchmarks import open_loop, report
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table, spread
from benchmarks.served import Server, running
from benchmarks.serving_run import Commits, write_commits
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.evict import Selection, evict
from embedps.config_fields import option
from embedps.models import two_tower
from embedps.pipelines.ingestion import interactions
from embedps.serving.server import messages
from embedps.serving.server.tensor_values import fill

DIM, K, ITEMS_PER_USER = 64, 100, 20
_NAME = "items"
_POLL_SECS = 0.02
_WAIT_SECS = 600.0
_DIFFERENT = 200  # requests, which are sent in turn


def make_request(user: int, **more: int) -> bytes:
    """Makes a request for the best items of a user."""
    request = messages.PredictRequest()
    request.model_spec.name = _NAME
    request.model_spec.signature_name = "top_k"
    for name, value in {"user": user, "k": K, **more}.items():
        fill(request.inputs[name], np.full(1, value, np.int64))
    return bytes(request.SerializeToString())


def write_interactions(folder: Path, items: int) -> None:
    """Writes which items users chose: each item once, and some of them to hold out."""
    rng, users = np.random.default_rng(0), items // ITEMS_PER_USER
    chosen = rng.permutation(users * ITEMS_PER_USER).reshape(users, ITEMS_PER_USER)
    for name, rows in (("train", chosen), ("test", chosen[:8, :1])):
        lines = (" ".join(map(str, (user, *row))) for user, row in enumerate(rows))
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def prepare(folder: Path, items: int, changes: Sequence[int]) -> None:
    """Makes a dataset, trains on it, and writes the commits that are to come."""
    write_interactions(folder, items)
    interactions.make_dataset(
        interactions.Options(
            train=(str(folder / "train.txt"),),
            test=str(folder / "test.txt"),
            output=str(folder / "set"),
            max_history=1,
        )
    )
    config = embedps.TrainConfig.from_options(
        data=str(folder / "set"),
        model_dir=str(folder / "model"),
        model="two_tower",
        eval="none",
        max_read_cost=1e9,
        keep_secs=1e6,
        sparse_learning_rate=0.1,
    )
    trainer = embedps.Trainer.from_config(config, two_tower.Config(embedding_dim=DIM))
    trainer.fit()
    write_commits(trainer, folder, ["item"], changes, rows=items, first_id=0)


class Watch:
    """Asks all the time, and notes when each manifest was first seen in an answer.

    It allows one item, so that its own searches take no time from what is measured.
    """

    def __init__(self, address: str) -> None:
        self.seen: dict[int, float] = {}
        self._channel = grpc.insecure_channel(address)
        self._predict = self._channel.unary_unary(open_loop.PREDICT)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def best(self) -> npt.NDArray[np.int64]:
        """Gives the best items of a user."""
        found = tf.make_ndarray(self._ask(make_request(0)).outputs["ids"])
        return np.asarray(found[0], np.int64)

    def _ask(self, request: bytes) -> Any:
        return messages.PredictResponse.FromString(self._predict(request))

    def _run(self) -> None:
        request = make_request(0, allowed=0, allowed_lengths=1)
        while not self._ended.wait(_POLL_SECS):
            number = self._ask(request).model_spec.version.value
            self.seen.setdefault(number, time.time())

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


def follow(server: Server, folder: Path, every_secs: float) -> dict[str, Any]:
    """Measures how long changes take until they are found."""
    directory = CheckpointDirectory(folder / "model")
    watch = Watch(server.grpc)
    before = watch.best()
    commits = Commits(folder)
    waits: dict[int, float] = {}
    while len(commits):
        time.sleep(every_secs)
        number = commits.commit()
        waits[number] = directory.read(number).wall_time
    watch.until(max(waits))
    after = watch.best()
    by_size: dict[int, list[float]] = {}
    for number, secs in visible_secs(watch.seen, waits).items():
        rows = sum(s.rows for s in directory.read(number).chain if s.number == number)
        by_size.setdefault(rows, []).append(secs)
    norm = 0.5
    while (removed := evict(directory, "item", Selection(below_norm=norm))).manifest is None:
        norm *= 1.1  # until it is more than that of some
    removal = removed.manifest
    watch.until(removal.number)
    watch.close()
    return {
        "commit_secs": every_secs,
        "added_or_changed_secs": {rows: report.spread(secs) for rows, secs in by_size.items()},
        "best_items_that_changed": len(np.setdiff1d(after, before)),
        "removed": removed.removed,
        "removed_secs": round(watch.seen[removal.number] - removal.wall_time, 3),
    }


def visible_secs(seen: Mapping[int, float], committed: Mapping[int, float]) -> dict[int, float]:
    """Gives by manifest the seconds from its commit to the first answer that has its changes."""
    return {
        number: min(at for other, at in seen.items() if other >= number) - when
        for number, when in committed.items()
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The items, the requests and the commits."""

    items: int = option(1_000_000, "of the index", least=1000, most=10**8)
    rate: float = option(10.0, "requests per second", above=0, most=1e6)
    secs: float = option(30.0, "of each load", above=0, most=3600)
    changes: tuple[int, ...] = option(
        (10_000, 100_000, 300_000), "items that commits change, one size after another", least=1
    )
    commits: int = option(5, "of each size", least=0, most=1000)
    commit_secs: float = option(2.0, "between two commits", above=0, most=3600)
    work: str | None = option(None, "keeps the dataset and the model", metavar=DIR)


def measure(config: Config, run: Run) -> Content:
    """Asks an exact index and an IVF; follows commits beside the exact one."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(config.work or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "model").exists():
            sizes = [size for size in config.changes for _ in range(config.commits)]
            prepare(folder, config.items, sizes)
        users = np.random.default_rng(1).integers(config.items // ITEMS_PER_USER, size=_DIFFERENT)
        requests = [make_request(int(user)) for user in users]
        where = [f"--model-dir={folder / 'model'}", f"--name={_NAME}"]
        for name, above in (("exact", 10**9), ("ivf", 0)):
            with running("embedps.serve", *where, f"--ivf-above={above}") as server:
                load = open_loop.offer(server.grpc, requests, config.rate, config.secs, seed=1)
                found[name] = {
                    "start_secs": round(server.start_secs, 1),
                    "said": server.said,
                    **load.summary(config.rate),
                    **server.memory(),
                }
                if name == "exact" and (folder / "later").exists():
                    found["following"] = follow(server, folder, config.commit_secs)
                    found["following"] |= server.memory()
            print(found, flush=True)
    return {"items": config.items, "dim": DIM, "k": K, "results": found}


def layout(content: Content) -> list[Part]:
    """Lays out the latencies, and how soon changes are found."""
    r = content["results"]
    rows = [
        [
            name,
            f"{r[name]['offered_qps']:g}",
            *(f"{r[name][key]:.1f}" for key in ("p50_ms", "p99_ms", "max_ms")),
            f"{r[name]['rss_mb']:,.0f}",
        ]
        for name in ("exact", "ivf")
        if name in r
    ]
    told = f"the best {content['k']} of {content['items']:,} items of {content['dim']} floats"
    heads = [told, "requests/s", "median, ms", "p99", "longest", "memory, MB"]
    parts: list[Part] = [Table(heads=heads, rows=rows), *r.get("ivf", {}).get("said", ())]
    if (of := r.get("following")) is not None:
        changed = of["added_or_changed_secs"]
        by_size = changed if "median" not in changed else {str(of["rows_per_delta"]): changed}
        waits = [[f"{int(n):,} items change", spread(secs)] for n, secs in by_size.items()]
        waits.append([f"{of['removed']:,} items are removed", f"{of['removed_secs']:.2f}"])
        parts.append(Table(heads=["a commit", "seconds until it is found"], rows=waits))
    return parts


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
