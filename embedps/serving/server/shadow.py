"""A shadow: another ref scores a share of a model's requests too, and both scores are recorded.

Its thread loads the ref and scores, on rows of its own. An answer never waits for it: what finds
too many requests waiting, or no model yet, is dropped and counted. Whatever fails is counted.
"""

from __future__ import annotations

import json
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from embedps.console.lines import say
from embedps.errors import CheckpointError
from embedps.serving.server.batcher import Answer
from embedps.serving.server.metrics import ShadowCounts
from embedps.serving.server.requests import Request
from embedps.serving.server.served_model import ServedModel
from embedps.serving.server.tensor_values import Array

_MAX_WAITING = 8  # requests
_MAX_REQUEST_BYTES = 1 << 22
_NONE = np.array(None, object)
_RETRY_SECS = 10.0  # of a ref that cannot be loaded


class Shadow:
    """Compares a model's answers with those of a ref."""

    def __init__(
        self,
        name: str,
        make: Callable[[], ServedModel],
        *,
        share: float,
        counts: ShadowCounts,
        log: Path | None = None,
    ) -> None:
        """Starts to load the ref.

        Args:
          name: of the model that is compared with it.
          make: loads the ref, and follows it.
          share: of the requests that it scores.
          counts: gets the differences, and what becomes of requests.
          log: a file that gets a line of JSON per request that both scored.
        """
        self._name, self._make, self._share, self._counts = name, make, share, counts
        self._log = log
        self._model: ServedModel | None = None
        self._said = ""
        self._stop = threading.Event()
        self._waiting: queue.Queue[tuple[Request, Answer] | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name=f"shadow-{name}", daemon=True)
        self._thread.start()

    @property
    def model(self) -> ServedModel | None:
        """The ref's model; None until it is loaded."""
        return self._model

    def offer(self, request: Request, answer: Answer) -> None:
        """Takes a request that was answered, or drops it; never waits."""
        if random.random() >= self._share:
            return
        lists = [array for pair in request.lists for array in pair]
        num_bytes = sum(array.nbytes for array in (request.floats, request.integers, *lists))
        try:
            if self._model is None or num_bytes > _MAX_REQUEST_BYTES:
                raise queue.Full
            self._waiting.put_nowait((request, answer))
        except queue.Full:
            self._counts.count("dropped")

    def close(self) -> None:
        """Ends; what waits is not scored."""
        self._stop.set()
        with suppress(queue.Full):  # then there is something to wake it
            self._waiting.put_nowait(None)
        self._thread.join()
        if self._model is not None:
            self._model.close()

    def _run(self) -> None:
        while self._model is None:
            try:
                self._model = self._make()
            except Exception as error:  # whatever it is, requests are answered
                self._complain(error)
                if self._stop.wait(_RETRY_SECS):
                    return
        while (offered := self._waiting.get()) is not None and not self._stop.is_set():
            try:
                self._compare(self._model, *offered)
            except Exception as error:
                self._counts.count("failed")
                self._complain(error)

    def _compare(self, model: ServedModel, request: Request, answer: Answer) -> None:
        shadow = model.ask(request)
        given = {name: array for name, array in answer.outputs.items() if array.dtype.kind == "f"}
        theirs = {name: shadow.outputs[name] for name in given}
        if self._log is not None:
            line = {
                "time": round(time.time(), 3),
                "model": self._name,
                "version": answer.number,
                "predictions": _lists(given),
                "shadow": model.ref,
                "shadow_version": shadow.number,
                "shadow_predictions": _lists(theirs),
            }
            with self._log.open("a") as file:  # anew each time: it may be moved away
                file.write(json.dumps(line) + "\n")
        differences = [np.abs(given[name] - theirs[name], dtype=np.float64) for name in given]
        mean = float(np.mean(np.concatenate([each.ravel() for each in differences])))
        if not math.isfinite(mean):
            raise CheckpointError(
                f"predictions must be finite but differ by {mean} between checkpoints "
                f"{answer.number} and {shadow.number}"
            )
        self._counts.observe(mean)
        self._counts.count("scored")

    def _complain(self, error: Exception) -> None:
        said = " ".join((str(error) or type(error).__name__).split())
        if said != self._said:
            say(f"{self._name}: the shadow does not score: {said}")
        self._said = said


def _lists(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Gives lists for JSON, with None for what is not finite."""
    return {
        name: np.where(np.isfinite(array), array.astype(object), _NONE).tolist()
        for name, array in arrays.items()
    }
