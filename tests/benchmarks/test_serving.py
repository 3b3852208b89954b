"""The load generator sends when requests are due, and charges a stall to all that it delayed."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from benchmarks import open_loop, serving
from embedps.console import command_line
from embedps.serving.server import messages


class Clock:
    """A time that only sleeping and a stall move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, secs: float) -> None:
        self.now += secs


class Stalling:
    """A server whose first answer takes a second, in which nobody can send; others take none."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._calls = clock, 0

    def future(self, request: bytes, timeout: float) -> Stalling:
        self._calls += 1
        if self._calls == 1:
            self._clock.now += 1.0
        return self

    def add_done_callback(self, callback: Any) -> None:
        callback(self)

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    def result(self) -> bytes:
        response = messages.PredictResponse()
        response.model_spec.version.value = 7
        return bytes(response.SerializeToString())


def test_a_stall_is_charged_to_all_that_were_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(open_loop, "time", clock)
    load = open_loop.send(Stalling(clock), [b"x"], 100, 0.5, seed=0)
    assert load.codes == {"OK": 50}
    assert set(load.version) == {7}
    # 50 requests were due in about half a second: the last of them waited the other half.
    found = load.summary(100)
    assert 500 < found["p50_ms"] < 1000 <= found["p999_ms"] + 1


def test_commits_are_visible_from_the_first_answer_that_has_them() -> None:
    due, latency = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.1, 0.1, 0.4, 0.1])
    version = np.array([1, 1, 3, 3])
    load = open_loop.Load(due, latency, np.zeros(4), version, {"OK": 4})
    committing = serving.Committing([], 2.0, None)  # type: ignore[arg-type]
    committing.times = {1: -3.0, 2: 1.5, 3: 1.9, 4: 2.5}  # before any request; two; never seen
    committing.gates = [(4.0, 100_000.0), (3.0, 50_000.0), (9.0, 0.0)]
    found = committing.results(load)
    assert found["commits"] == 4
    assert (found["visible_ms"]["min"], found["visible_ms"]["max"]) == (500, 900)
    assert found["gate_ms_per_100k_rows"] == {"median": 5, "min": 4, "max": 6, "repeats": 2}


def test_sizes_and_rates_are_as_many() -> None:
    assert command_line.run(serving.main, ["--rates=1"]) == 2
