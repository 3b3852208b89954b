"""The load generator sends when requests are due, and charges a stall to all that it delayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

import embedps
from benchmarks import serving
from embedps.console import command_line
from embedps.serving.server import messages
from tests.builders import TINY_DLRM, make_config, write_dataset


class Clock:
    """A time that only sleeping and a stall move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
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
    monkeypatch.setattr(serving, "time", clock)
    found = serving._ask(Stalling(clock), [b"x"], 100, 0.5, seed=0)
    assert found["codes"] == {"OK": 50}
    assert found["manifests"] == 1
    # 50 requests were due in about half a second: the last of them waited the other half.
    assert 500 < found["p50_ms"] < 1000 <= found["p999_ms"] + 1


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_server_is_measured(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", train=(500,), evaluation=(200,))
    config = make_config(dataset, tmp_path / "m", model="dlrm")
    embedps.Trainer.from_config(config, TINY_DLRM).fit()
    output = tmp_path / "serving.json"
    flags = ["--model-dir", str(tmp_path / "m"), "--rows=1,50", "--rates=40,20", "--secs=0.5"]
    assert command_line.run(serving.main, [*flags, f"--output={output}"]) == 0
    results = json.loads(output.read_text())["results"]
    assert [(each["rows"], each["codes"]) for each in results] == [
        (1, {"OK": 20}),
        (50, {"OK": 10}),
    ]
    assert command_line.run(serving.main, [*flags, "--rates=1"]) == 2
