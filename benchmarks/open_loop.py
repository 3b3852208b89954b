"""A load generator with an open loop: `python -m benchmarks.open_loop`, a process of its own.

It draws the times at which requests are due before it starts, at random with a given mean rate, and
sends each when it is due, whether or not answers came. A latency counts from the time at which its
request was due. So a server that stalls, or a client that falls behind, is charged for all that it
delays: there is no coordinated omission. `late_ms` tells how much of it is the client's own.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import numpy.typing as npt

from embedps.serving.server import messages

Floats = npt.NDArray[np.float64]
PREDICT = f"/{messages.PREDICTION_SERVICE}/Predict"
_DRAIN_SECS = 30.0
_WARM_UP_SECS = 2.0


class Load(NamedTuple):
    """What came of a load. Times are those of `time.monotonic`, which processes share.

    Attributes:
      due: when each request was due.
      latency: seconds from there to its answer.
      late: seconds from there until it was sent.
      version: of the model that answered; -1 for an error.
      codes: how many requests got which status.
    """

    due: Floats
    latency: Floats
    late: Floats
    version: npt.NDArray[np.int64]
    codes: dict[str, int]

    def summary(self, rate: float) -> dict[str, Any]:
        """Gives the rates and percentiles, in ms."""
        p50, p99, p999, most = _percentiles(self.latency, 50, 99, 99.9, 100)
        secs = float((self.due + self.latency).max() - self.due.min())
        return {
            "offered_qps": rate,
            "answered_qps": round(self.codes.get("OK", 0) / secs, 1),
            "p50_ms": p50,
            "p99_ms": p99,
            "p999_ms": p999,
            "max_ms": most,
            "late_p99_ms": _percentiles(self.late, 99)[0],
            "codes": self.codes,
        }


def offer(
    address: str,
    requests: Sequence[bytes],
    rate: float,
    secs: float,
    seed: int,
    *,
    token: str = "",
    beside: Callable[[], object] = lambda: None,
) -> Load:
    """Runs the generator in a process of its own.

    Args:
      address: of the server.
      rate: requests per second.
      secs: how long to send, after the warm-up.
      seed: of the times.
      token: that each request carries.
      beside: is called here once the warm-up is over, while the load is offered.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "requests.npz", *[np.frombuffer(each, np.uint8) for each in requests])
        plan = {"address": address, "rate": rate, "secs": secs, "seed": seed, "token": token}
        (folder / "plan.json").write_text(json.dumps(plan))
        command = [sys.executable, "-m", "benchmarks.open_loop", name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as generator:
            if generator.stdout is not None and generator.stdout.readline():
                beside()
        if generator.returncode:
            raise subprocess.CalledProcessError(generator.returncode, command)
        with np.load(folder / "load.npz") as found:
            return Load(
                due=found["due"],
                latency=found["latency"],
                late=found["late"],
                version=found["version"],
                codes=json.loads((folder / "codes.json").read_text()),
            )


def _percentiles(secs: Floats, *wanted: float) -> list[float]:
    return [round(float(each), 2) for each in np.percentile(secs * 1e3, wanted)]


def send(
    predict: Any,
    requests: Sequence[bytes],
    rate: float,
    secs: float,
    seed: int,
    **options: Any,
) -> Load:
    """Sends requests as they are due, with options of their calls, and waits for the answers."""
    due = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, int(rate * secs)))
    ends, sent = np.zeros(len(due)), np.zeros(len(due))
    calls: list[Any] = [None] * len(due)
    left = threading.Semaphore(0)
    began = time.monotonic() + 0.05

    def ended(place: int) -> None:
        ends[place] = time.monotonic()
        left.release()

    for place, at in enumerate((began + due).tolist()):
        wait = at - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        sent[place] = time.monotonic()
        call = predict.future(requests[place % len(requests)], timeout=_DRAIN_SECS, **options)
        calls[place] = call
        call.add_done_callback(lambda _, place=place: ended(place))
    for _ in due:
        left.acquire()
    due += began
    codes = Counter(call.code().name for call in calls)
    return Load(due, ends - due, sent - due, np.array(list(map(_version, calls))), dict(codes))


def _version(call: Any) -> int:
    if call.code() != grpc.StatusCode.OK:
        return -1
    return int(messages.PredictResponse.FromString(call.result()).model_spec.version.value)


def main(arguments: Sequence[str]) -> int:
    """Offers the load that a folder plans, and writes what came of it there."""
    folder = Path(arguments[0])
    plan = json.loads((folder / "plan.json").read_text())
    with np.load(folder / "requests.npz") as stored:
        requests = [stored[name].tobytes() for name in stored.files]
    gc.freeze()
    gc.disable()
    with grpc.insecure_channel(plan["address"]) as channel:
        predict = channel.unary_unary(PREDICT)
        rate, secs, seed = plan["rate"], plan["secs"], plan["seed"]
        options = {}
        if plan["token"]:
            options["metadata"] = [("authorization", f"Bearer {plan['token']}")]
        send(predict, requests, rate, min(_WARM_UP_SECS, secs), seed + 1, **options)
        print("warm", flush=True)
        load = send(predict, requests, rate, secs, seed, **options)
    np.savez(folder / "load.npz", **{f: getattr(load, f) for f in Load._fields[:-1]})
    (folder / "codes.json").write_text(json.dumps(load.codes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
