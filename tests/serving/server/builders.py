"""A served model in this process, a run whose checkpoints appear one by one, and its clients."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import numpy as np
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.run.run_config import read_run
from embedps.serving.server import messages
from embedps.serving.server.batching import Batching
from embedps.serving.server.grpc_server import GrpcServer
from embedps.serving.server.live_model import LiveModel
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.ranking import Ranking
from embedps.serving.server.rest_server import RestServer
from embedps.serving.server.served_model import ServedModel
from embedps.serving.server.shadow import Shadow
from embedps.serving.server.tensor_values import fill

NAME = "clicks"


class Addresses:
    def __init__(self, grpc_port: int, rest_port: int) -> None:
        self.grpc = f"127.0.0.1:{grpc_port}"
        self.rest = f"http://127.0.0.1:{rest_port}"
        self.client = Client(self.grpc)


@contextmanager
def serving(
    directory: CheckpointDirectory, dataset: Dataset, *, max_waiting: int = 64, **options: Any
) -> Iterator[tuple[ModelApi, ServedModel, Addresses]]:
    """Serves a run's newest manifest, or those of `refs`, and follows; gives the first."""
    recommender = options.pop("model", None) or read_run(directory.path).recommender(dataset)
    api = ModelApi(token=options.pop("token", None))
    more = {"ranking": options.pop("ranking", Ranking())}
    more |= {name: options.pop(name, None) for name in ("transforms", "memory")}
    number, follows = options.pop("number", None), options.pop("follows", True)
    batching = Batching(max_waiting=max_waiting, part_rows=options.pop("part_rows", 1024))
    refs, shadow, log = (options.pop(name, None) for name in ("refs", "shadow", "shadow_log"))

    def serve(ref: str | None) -> ServedModel:
        return ServedModel(
            NAME,
            directory,
            lambda manifest: LiveModel(recommender, dataset, directory, manifest, **more),
            number=number,
            ref=ref,
            follows=follows,
            batching=batching,
            on_batch=api.metrics.count_batch(NAME, ref or ""),
        )

    for ref in reversed(refs or (None,)):
        model = serve(ref)
        api.refs |= {(NAME, ref): model} if ref else {}
    api.models[NAME] = model
    if shadow:
        counts = api.metrics.shadow_counts(NAME, shadow)
        api.shadows[NAME] = Shadow(NAME, partial(serve, shadow), share=1.0, counts=counts, log=log)
    api.health.set(True)
    servers = (
        GrpcServer(api, host="127.0.0.1", port=0, max_waiting=max_waiting),
        RestServer(api, host="127.0.0.1", port=0),
    )
    for server in servers:
        server.start()
    addresses = Addresses(servers[0].port, servers[1].port)
    try:
        yield api, model, addresses
    finally:
        addresses.client.close()
        servers[0].stop(5)
        servers[1].stop(5)
        for each in api.shadows.values():
            each.close()
        for served in api.served():
            served.close()


def ask_rest(url: str, body: Any = None, token: str = "") -> tuple[int, Any]:
    """Gives the code, and the JSON, the text, or the error."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read().decode()
            is_json = response.headers["Content-Type"] == "application/json"
            return response.status, json.loads(text) if is_json else text
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def until(check: Any) -> None:
    """Waits until something holds; at most a minute."""
    pause = threading.Event()
    for _ in range(6000):
        if check():
            return
        pause.wait(0.01)
    raise AssertionError("waited a minute in vain")


def predict_request(arrays: Mapping[str, np.ndarray], **spec: Any) -> Any:
    request = messages.PredictRequest()
    request.model_spec.name = spec.get("name", NAME)
    request.model_spec.signature_name = spec.get("signature", "")
    request.model_spec.version_label = spec.get("label", "")
    if "version" in spec:
        request.model_spec.version.value = spec["version"]
    for name, array in arrays.items():
        fill(request.inputs[name], array)
    return request


class Client:
    """Calls the server over gRPC."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)

    def call(self, service: str, method: str, request: Any, answer: Any, **options: Any) -> Any:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        call = self._channel.unary_unary(f"/{service}/{method}")
        return answer.FromString(call(data, **{"timeout": 60, **options}))

    def predict(self, request: Any, **options: Any) -> Any:
        service = messages.PREDICTION_SERVICE
        return self.call(service, "Predict", request, messages.PredictResponse, **options)

    def close(self) -> None:
        self._channel.close()


def status(client: Client) -> Any:
    request = messages.GetModelStatusRequest()
    request.model_spec.name = NAME
    kind = messages.GetModelStatusResponse
    return client.call(messages.MODEL_SERVICE, "GetModelStatus", request, kind)


def score_of(response: Any) -> np.ndarray:
    score = tf.make_ndarray(response.outputs["score"])
    assert isinstance(score, np.ndarray)
    return score
