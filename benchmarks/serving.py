"""Asks a server at a fixed rate: `python -m benchmarks.serving --model-dir DIR`.

The server is a process beside this client. Requests are sent at times that were drawn before, at
random with the given mean rate, whether or not answers came (an open loop). A latency counts from
the time at which its request was due, so a server that stalls is charged for all that it delayed.
If the run trains meanwhile, the server follows it, and the manifests that answered are counted.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import pyarrow.parquet as pq

from benchmarks import report
from embedps.console import command_line
from embedps.console.command_line import number, text
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.run.run_config import read_run
from embedps.serving.server import messages
from embedps.serving.server.requests import RequestFormat
from embedps.serving.server.tensor_values import fill
from embedps.storage.object_store import as_path

_NAME = "model"
_DIFFERENT = 200  # requests, which are sent in turn
_DRAIN_SECS = 30.0


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    options = _parser().parse_args(arguments)
    if len(options.rows) != len(options.rates):
        raise UsageError(
            f"--rows and --rates must have as many values but have {len(options.rows)} and "
            f"{len(options.rates)}"
        )
    environment = report.environment()
    command = ["-m", "embedps.serve", "--model-dir", options.model_dir, "--name", _NAME]
    server = subprocess.Popen(
        [sys.executable, *command, "--port=0", "--rest-port=0"], stdout=subprocess.PIPE, text=True
    )
    try:
        line = server.stdout.readline() if server.stdout is not None else ""
        if not line.startswith("serves "):
            raise UsageError(f"the server of {options.model_dir} did not start: see above")
        words = line.split()
        found = []
        with grpc.insecure_channel(words[words.index("at") + 1]) as channel:
            predict = channel.unary_unary(f"/{messages.PREDICTION_SERVICE}/Predict")
            for rows, rate in zip(options.rows, options.rates, strict=True):
                requests = _requests(options.model_dir, rows)
                _ask(predict, requests, rate, min(2.0, options.secs), seed=1)  # warm-up
                result = _ask(predict, requests, rate, options.secs, seed=0)
                found.append({"rows": rows, "offered_qps": rate, **result})
                print(found[-1], flush=True)
    finally:
        server.terminate()
        server.wait()
    report.write(
        options.output,
        {
            "benchmark": "serving",
            "command": f"python -m benchmarks.serving --secs {options.secs:g} --rows "
            f"{','.join(map(str, options.rows))} --rates {','.join(map(str, options.rates))}",
            "environment": environment,
            "results": found,
        },
    )
    return 0


def _requests(model_dir: str, rows: int) -> list[bytes]:
    """Makes requests of records of the run's eval split."""
    run = read_run(as_path(model_dir))
    dataset = Dataset.open(run.config.data)
    from embedps.engine.step_model import StepModel

    recommender = run.recommender(dataset)
    columns = StepModel(recommender, dataset).output_columns
    form = RequestFormat(columns, missing_id=recommender.missing_id)
    if form.lists:
        raise UsageError(f"the model must have no columns of lists but has {form.lists[0]!r}")
    table = pq.read_table(dataset.paths("eval")[0], columns=list(columns.names))
    rng = np.random.default_rng(0)
    made = []
    for _ in range(_DIFFERENT):
        places = rng.integers(0, table.num_rows, rows)
        request = messages.PredictRequest()
        request.model_spec.name = _NAME
        for (name, spec), column in zip(form.specs.items(), columns.names, strict=True):
            values = table[column].take(places).to_numpy()
            fill(request.inputs[name], values.astype(spec.dtype.as_numpy_dtype))
        made.append(request.SerializeToString())
    return made


def _ask(
    predict: Any, requests: Sequence[bytes], rate: float, secs: float, *, seed: int
) -> dict[str, Any]:
    """Sends requests as they are due; gives the latencies from there on, in ms."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, int(rate * secs))
    due = np.cumsum(gaps)
    latencies = np.full(len(due), np.inf)
    codes: Counter[str] = Counter()
    numbers: Counter[int] = Counter()
    left = threading.Semaphore(0)
    began = time.perf_counter()

    def ended(place: int, call: Any) -> None:
        latencies[place] = time.perf_counter() - began - due[place]
        codes[call.code().name] += 1
        if call.code() == grpc.StatusCode.OK:
            answer = messages.PredictResponse.FromString(call.result())
            numbers[answer.model_spec.version.value] += 1
        left.release()

    for place, at in enumerate(due):
        wait = at - (time.perf_counter() - began)
        if wait > 0:
            time.sleep(wait)
        call = predict.future(requests[place % len(requests)], timeout=_DRAIN_SECS)
        call.add_done_callback(lambda call, place=place: ended(place, call))
    for _ in due:
        left.acquire()
    spent = time.perf_counter() - began
    p50, p99, p999 = np.percentile(latencies * 1000, (50, 99, 99.9)).round(2).tolist()
    return {
        "answered_qps": round(codes["OK"] / spent, 1),
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "codes": dict(codes),
        "manifests": len(numbers),
    }


def _counts(given: str) -> list[int]:
    read = number(int, least=1, most=65536)
    return [read(part) for part in given.split(",")]


def _parser() -> command_line.Parser:
    parser = command_line.Parser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument(
        "--model-dir",
        type=text,
        required=True,
        metavar="DIR",
        help="the directory that embedps train was given",
    )
    parser.add_argument(
        "--rows",
        type=_counts,
        default=[1, 100, 1000],
        metavar="N,N,…",
        help="records per request, one after another (default: 1,100,1000)",
    )
    parser.add_argument(
        "--rates",
        type=_counts,
        default=[200, 100, 20],
        metavar="N,N,…",
        help="requests per second, for each of --rows (default: 200,100,20)",
    )
    parser.add_argument(
        "--secs",
        type=number(float, above=0, most=3600),
        default=20.0,
        metavar="X",
        help="how long to ask, for each of --rows (default: 20.0)",
    )
    parser.add_argument(
        "--output", type=report.output_file, default=report.RESULTS / "serving.json", metavar="FILE"
    )
    return parser


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
