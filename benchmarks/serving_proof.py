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
import signal
import subprocess
import sys
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

from benchmarks import report
from embedps import evaluate
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console import command_line
from embedps.console.command_line import number, text
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


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    options = _parser().parse_args(arguments)
    environment = report.environment()
    with tempfile.TemporaryDirectory() as folder:
        found = prove(options, Path(folder))
    print(found)
    report.write(
        options.output,
        {
            "benchmark": "serving_proof",
            "command": " ".join(["python -m benchmarks.serving_proof", *arguments]),
            "environment": environment,
            "config": {k: v for k, v in vars(options).items() if k != "output"},
            "results": found,
        },
    )
    return 0 if found["wrong_scores"] == 0 else 1


def prove(options: Any, folder: Path) -> dict[str, Any]:
    """Trains, serves and asks at once; then compares."""
    log = folder / "day_0.tsv"
    _run("embedps.pipelines.generate", "--rows", str(options.rows), "--output", str(log))
    _run("embedps.pipelines.criteo", "--input", str(log), "--output", str(folder / "data"))
    dataset = Dataset.open(folder / "data")
    model_dir = folder / "model"
    run = _start(
        "embedps.train",
        *(f"--data={folder / 'data'}", f"--model-dir={model_dir}", "--eval=none"),
        *(f"--delta-secs={options.delta_secs}", "--keep-secs=1e6", *options.flags.split()),
        stdout=sys.stderr,
    )
    directory = CheckpointDirectory(model_dir)
    try:
        _wait_for_a_commit(directory, run)
        server = _start(
            "embedps.serve",
            *(f"--model-dir={model_dir}", f"--name={_NAME}", "--port=0", "--rest-port=0"),
            stdout=subprocess.PIPE,
        )
        try:
            line = server.stdout.readline() if server.stdout is not None else ""
            if not line.startswith("serves "):
                raise EmbedpsError("the server did not start: see above")
            words = line.split()
            began = time.monotonic()
            answers = ask(words[words.index("at") + 1], split_of(dataset), options)
            secs = time.monotonic() - began
        finally:
            server.terminate()
            server.wait()
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait()
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


def ask(address: str, table: Mapping[str, npt.NDArray[Any]], options: Any) -> list[Answer]:
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
                    if next(taken) >= options.requests:
                        return found
                size = round(math.exp(rng.uniform(0, math.log(options.most_rows))))
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

    with ThreadPoolExecutor(options.clients) as pool:
        return [answer for part in pool.map(client, range(options.clients)) for answer in part]


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


def _wait_for_a_commit(directory: CheckpointDirectory, run: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _WAIT_SECS
    while not directory.numbers():
        if time.monotonic() > deadline or run.poll() is not None:
            raise EmbedpsError("the run committed no checkpoint in time")
        time.sleep(0.1)


def _run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, stdout=sys.stderr)


def _start(module: str, *arguments: str, stdout: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=stdout, text=True)


def _parser() -> command_line.Parser:
    parser = command_line.Parser(prog="python -m benchmarks.serving_proof", description=__doc__)
    count = number(int, least=1, most=10**9)
    parser.add_argument(
        "--rows", type=count, default=300_000, metavar="N", help="of the log (default: 300000)"
    )
    parser.add_argument(
        "--requests", type=count, default=10_000, metavar="N", help="(default: 10000)"
    )
    parser.add_argument(
        "--most-rows",
        type=number(int, least=1, most=65536),
        default=1000,
        metavar="N",
        help="the most records of a request (default: 1000)",
    )
    parser.add_argument(
        "--clients",
        type=number(int, least=1, most=64),
        default=3,
        metavar="N",
        help="that ask one request after another (default: 3)",
    )
    parser.add_argument(
        "--delta-secs",
        type=number(float, above=0, most=3600),
        default=3.0,
        metavar="X",
        help="of the run (default: 3.0)",
    )
    parser.add_argument("--flags", type=text, default=_FLAGS, help="more of the run")
    parser.add_argument(
        "--output",
        type=report.output_file,
        default=report.RESULTS / "serving_proof.json",
        metavar="FILE",
    )
    return parser


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
