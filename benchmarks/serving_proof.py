"""Proves that what is served was trained: `python -m benchmarks.serving_proof`.

A run trains and commits deltas, with evictions and new bases. A server follows it, and clients ask
it for --requests answers of 1 to --most-rows records of the eval split. Each answer names its
manifest. Then `embedps evaluate --number N --scores FILE` scores the split with each manifest that
was named, and every score of every answer is compared bit for bit.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from benchmarks.datasets import generate_clicks
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, figures
from benchmarks.served import running, training
from embedps import evaluate
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.config_fields import option
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.errors import EmbedpsError
from embedps.serving.server import messages
from embedps.serving.server.tensor_values import fill

_NAME = "model"
_PREDICTION = "score"
_WAIT_SECS = 120.0
_FLAGS = "--epochs=1000 --row-ttl-steps=60 --max-read-cost=1.5"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What the server said.

    Attributes:
      number: of the manifest that it named.
      places: of the records in the eval split.
      scores: of these records.
    """

    number: int
    places: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The run and the clients."""

    rows: int = option(300_000, "of the log", least=1)
    requests: int = option(10_000, "in all", least=1)
    most_rows: int = option(1000, "the most records of a request", least=1, most=65536)
    clients: int = option(3, "that ask one request after another", least=1, most=64)
    delta_secs: float = option(3.0, "of the run", above=0, most=3600)
    flags: str = option(_FLAGS, "more of the run")


def prove(config: Config, folder: Path) -> dict[str, Any]:
    """Trains, serves and asks at once; then compares."""
    dataset = generate_clicks(folder, config.rows)
    model_dir = folder / "model"
    flags = (f"--delta-secs={config.delta_secs}", "--keep-secs=1e6", *config.flags.split())
    where = (f"--model-dir={model_dir}", f"--name={_NAME}")
    with training(folder, *flags), running("embedps.serve", *where) as server:
        began = time.monotonic()
        answers = ask(server.grpc, split_of(dataset), config)
        secs = time.monotonic() - began
    directory = CheckpointDirectory(model_dir)
    named = Counter(answer.number for answer in answers)
    expected = {n: _scores(model_dir, n, folder / f"{n}.parquet") for n in sorted(named)}
    sizes = [len(answer.places) for answer in answers]
    manifests = [directory.read(n) for n in named]
    saves = [manifest.chain[-1] for manifest in manifests]
    return {
        "requests": len(answers),
        "records": sum(sizes),
        "least_rows": min(sizes),
        "most_rows": max(sizes),
        "manifests": len(named),
        "least_requests_of_a_manifest": min(named.values()),
        "bases": len({manifest.base_number for manifest in manifests}),
        "rows_of_deltas": sum(save.rows for save in saves if save.kind == "delta"),
        "removed_of_deltas": sum(save.removed for save in saves if save.kind == "delta"),
        "secs": round(secs, 1),
        "wrong_scores": wrong_scores(answers, expected),
        "scores_that_changed": changed_scores(expected),
    }


def ask(address: str, table: Mapping[str, npt.NDArray[Any]], config: Config) -> list[Answer]:
    """Asks for records drawn at random; sizes are spread evenly over their logarithm."""
    rows = len(next(iter(table.values())))
    taken = itertools.count()
    lock = threading.Lock()

    def client(seed: int) -> list[Answer]:
        rng = np.random.default_rng(seed)
        found: list[Answer] = []
        with grpc.insecure_channel(address) as channel:
            inputs = _inputs(channel)
            predict = channel.unary_unary(f"/{messages.PREDICTION_SERVICE}/Predict")
            while True:
                with lock:
                    if next(taken) >= config.requests:
                        return found
                size = round(math.exp(rng.uniform(0, math.log(config.most_rows))))
                places = rng.integers(0, rows, size)
                request = messages.PredictRequest()
                request.model_spec.name = _NAME
                for name, dtype in inputs.items():
                    fill(request.inputs[name], table[name][places].astype(dtype))
                data = predict(request.SerializeToString(), timeout=_WAIT_SECS)
                answer = messages.PredictResponse.FromString(data)
                scores = tf.make_ndarray(answer.outputs[_PREDICTION])
                version = answer.model_spec.version.value
                found.append(Answer(number=version, places=places, scores=scores))

    with ThreadPoolExecutor(config.clients) as pool:
        return [answer for part in pool.map(client, range(config.clients)) for answer in part]


def wrong_scores(answers: Sequence[Answer], expected: Mapping[int, npt.NDArray[np.float32]]) -> int:
    """Counts the scores whose bits are not those of the manifest that the answer names."""
    wrong = 0
    for answer in answers:
        want = expected[answer.number][answer.places].view(np.uint32)
        wrong += int(np.count_nonzero(answer.scores.view(np.uint32) != want))
    return wrong


def changed_scores(expected: Mapping[int, npt.NDArray[np.float32]]) -> float:
    """Gives the least share of scores that differ from one manifest to the next."""
    shares = [
        float(np.mean(expected[a].view(np.uint32) != expected[b].view(np.uint32)))
        for a, b in itertools.pairwise(sorted(expected))
    ]
    return round(min(shares, default=0.0), 4)


def split_of(dataset: Dataset) -> dict[str, npt.NDArray[Any]]:
    """Reads the eval split's columns."""
    table = pa.concat_tables(pq.read_table(path) for path in dataset.paths("eval"))
    return {name: table[name].to_numpy() for name in table.column_names}


def _inputs(channel: Any) -> dict[str, Any]:
    """Gives the dtypes of the columns that the server's model takes."""
    request = messages.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = _NAME
    call = channel.unary_unary(f"/{messages.PREDICTION_SERVICE}/GetModelMetadata")
    answer = messages.GetModelMetadataResponse.FromString(call(request.SerializeToString()))
    made = messages.SignatureDefMap.FromString(answer.metadata["signature_def"].value)
    inputs = made.signature_def["serving_default"].inputs
    return {name: tf.as_dtype(tensor.dtype).as_numpy_dtype for name, tensor in inputs.items()}


def _scores(model_dir: Path, manifest: int, file: Path) -> npt.NDArray[np.float32]:
    """Scores the eval split as the evaluator does."""
    flags = ["--model-dir", str(model_dir), "--number", str(manifest), "--scores", str(file)]
    if command_line.run(evaluate.main, flags) != 0:
        raise EmbedpsError(f"checkpoint {manifest} cannot be evaluated: see above")
    found: npt.NDArray[np.float32] = pq.read_table(file)[_PREDICTION].to_numpy()
    file.unlink()
    return found


def _measure(config: Config, run: Run) -> Content:
    with tempfile.TemporaryDirectory() as folder:
        return {"results": prove(config, Path(folder))}


def layout(content: Content) -> list[Part]:
    """Lays out what was compared."""
    r = content["results"]
    rows = [
        ["answers with a score that is not the named manifest's", f"{r['wrong_scores']:,}", "0"],
        ["answers; records", f"{r['requests']:,}; {r['records']:,}"],
        ["manifests that were named; bases among them", f"{r['manifests']}; {r['bases']}"],
        ["rows of their deltas", f"{r['rows_of_deltas']:,}"],
        ["evicted rows in their deltas", f"{r['removed_of_deltas']:,}"],
        ["share of scores that changed between two manifests", f"{r['scores_that_changed']:.2f}"],
    ]
    return [figures(f"requests of {r['least_rows']} to {r['most_rows']:,} records", rows)]


def _failure(content: Content) -> str | None:
    wrong = content["results"]["wrong_scores"]
    return f"{wrong} answers have scores of no manifest that they name" if wrong else None


BENCHMARK = Benchmark(config=Config, measure=_measure, layout=layout, failure=_failure)


if __name__ == "__main__":
    main(BENCHMARK)
