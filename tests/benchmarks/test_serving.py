"""The load generator sends when requests are due, and charges a stall to all that it delayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import open_loop, serving, serving_export
from embedps.console import command_line
from embedps.serving.server import messages
from embedps.serving.server.grpc_server import GrpcServer
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.tensor_values import fill


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


def test_an_export_answers_as_the_server_does(tmp_path: Path) -> None:
    specs = {"price": tf.TensorSpec([None], tf.float32), "item": tf.TensorSpec([None], tf.int64)}

    @tf.function
    def score(price: tf.Tensor, item: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"score": price + tf.cast(item, tf.float32)}

    module = tf.Module()
    signature = score.get_concrete_function(**specs)
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": signature})
    api = ModelApi()
    export = serving_export.Export(str(tmp_path))
    api.models[serving.NAME] = export  # type: ignore[assignment]
    server = GrpcServer(api, host="127.0.0.1", port=0, max_waiting=4)
    server.start()
    try:
        request = messages.PredictRequest()
        request.model_spec.name = serving.NAME
        fill(request.inputs["price"], np.array([0.5, 1.5], np.float32))
        fill(request.inputs["item"], np.array([2, 3]))
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            predict = channel.unary_unary(open_loop.PREDICT)
            answer = messages.PredictResponse.FromString(predict(request.SerializeToString()))
        assert tf.make_ndarray(answer.outputs["score"]).tolist() == [2.5, 4.5]
    finally:
        server.stop(5)
        export.close()


def test_sizes_and_rates_are_as_many() -> None:
    assert command_line.run(serving.BENCHMARK.run, ["--rates=1"]) == 2
