"""Serves an export by TensorFlow: `python -m benchmarks.serving_export EXPORT --port N`.

`tf.saved_model.load` loads it, and its signature `serving_default` scores. Requests come by the
gRPC server and the batches of `embedps serve`, as there is no TensorFlow Serving for Python.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import tensorflow as tf

from embedps.console.shutdown import stop_signals
from embedps.serving.server.batcher import Answer, Batcher
from embedps.serving.server.grpc_server import GrpcServer
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.request_reader import RequestReader
from embedps.serving.server.requests import Request

NAME = "model"
_MAX_WAITING = 64


class _Format:
    """Requests as the export's signature takes them: the columns of one dtype in a matrix."""

    def __init__(self, specs: dict[str, tf.TensorSpec]) -> None:
        self.specs = {name: tf.TensorSpec([None], spec.dtype) for name, spec in specs.items()}
        self.lists: tuple[str, ...] = ()
        self.list_values: frozenset[str] = frozenset()
        self.floats = sorted(n for n, s in specs.items() if s.dtype == tf.float32)
        self.integers = sorted(n for n, s in specs.items() if s.dtype == tf.int64)

    def check_names(self, names: set[str]) -> None:
        """Accepts any names."""

    def request(self, given: dict[str, Any]) -> Request:
        """Makes a request of its tensors."""
        return Request(
            rows=len(given[self.integers[0]]),
            floats=np.stack([given[name] for name in self.floats]),
            integers=np.stack([given[name] for name in self.integers]),
            lists=(),
        )


class Export:
    """An export with the methods of a ServedModel that requests need."""

    def __init__(self, path: str) -> None:
        self._loaded = tf.saved_model.load(path)
        score = self._score = self._loaded.signatures["serving_default"]
        self.format = _Format(score.structured_input_signature[1])
        self.name, self.standing = NAME, SimpleNamespace(number=1)
        reader = RequestReader(self.format.floats, self.format.integers)
        self.model = SimpleNamespace(format=self.format, made={}, items=None, reader=reader)
        self._batcher = Batcher(
            self._answer,
            max_batch_rows=1024,
            max_part_rows=1024,
            max_waiting=_MAX_WAITING,
            wait_secs=0.0,
            on_batch=lambda _: None,
        )
        self.ask = self._batcher.ask
        self.close = self._batcher.close

    def _answer(self, request: Request) -> Answer:
        given = dict(zip(self.format.floats, map(tf.constant, request.floats), strict=True))
        given |= zip(self.format.integers, map(tf.constant, request.integers), strict=True)
        found = {name: value.numpy() for name, value in self._score(**given).items()}
        return Answer(number=1, outputs=found)


def main(arguments: Sequence[str]) -> int:
    """Serves until SIGTERM."""
    api = ModelApi()
    api.models[NAME] = cast(Any, Export(arguments[0]))
    server = GrpcServer(api, host="127.0.0.1", port=0, max_waiting=_MAX_WAITING)
    ended = threading.Event()
    with stop_signals(ended.set):
        server.start()
        print(f"serves {NAME} at 127.0.0.1:{server.port} (gRPC) and nothing", flush=True)
        ended.wait()
    server.stop(1.0)
    api.models[NAME].close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
