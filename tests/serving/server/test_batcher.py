"""The queue is bounded, deadlines hold, and one bad record does not spoil a batch."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from embedps.serving.server.batcher import Answer, Batcher
from embedps.serving.server.request_error import RequestError
from embedps.serving.server.requests import Request
from tests.serving.server.builders import until


def make_request(*values: float) -> Request:
    floats = np.array([values], np.float32)
    return Request(rows=len(values), floats=floats, integers=np.zeros([0, 1], np.int64), lists=())


class Doubling:
    """Doubles numbers, once it may; refuses negative ones."""

    def __init__(self) -> None:
        self.may_go, self.number = threading.Event(), 1
        self.rows: list[int] = []

    def __call__(self, request: Request) -> Answer:
        self.rows.append(request.rows)
        assert self.may_go.wait(60)
        if (request.floats < 0).any():
            raise ValueError("negative")
        return Answer(number=self.number, outputs={"score": request.floats[0] * 2})


def make_batcher(score: Doubling, **options: Any) -> Batcher:
    known = {"max_batch_rows": 4, "max_waiting": 3, "wait_secs": 0.0}
    return Batcher(score, **{**known, **options}, on_batch=lambda _: None)


def test_requests_share_batches_and_a_full_queue_refuses() -> None:
    score = Doubling()
    batcher = make_batcher(score)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(batcher.ask, make_request(1))
        until(lambda: score.rows == [1])
        waiting = []
        for i, request in enumerate((make_request(2, 3), make_request(-4), make_request(5, 6))):
            waiting.append(pool.submit(batcher.ask, request))
            until(lambda i=i: len(batcher._waiting) == i + 1)
        with pytest.raises(RequestError, match="3 requests wait already") as refused:
            batcher.ask(make_request(7))
        assert refused.value.code == "RESOURCE_EXHAUSTED"
        score.may_go.set()
        assert first.result().outputs["score"].tolist() == [2]
        assert waiting[0].result().outputs["score"].tolist() == [4, 6]
        with pytest.raises(RequestError, match="ValueError: negative"):
            waiting[1].result()
        assert waiting[2].result().outputs["score"].tolist() == [10, 12]
    # The second batch has 2 + 1 rows; it failed, and its requests were scored one by one.
    assert score.rows == [1, 3, 2, 1, 2]
    batcher.close()
    with pytest.raises(RequestError, match="the server ends"):
        batcher.ask(make_request(1))


def test_who_waited_too_long_is_not_scored() -> None:
    score = Doubling()
    batcher = make_batcher(score)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batcher.ask, make_request(1))
        until(lambda: score.rows == [1])
        with pytest.raises(RequestError) as late:
            batcher.ask(make_request(2), timeout=0.01)
        assert late.value.code == "DEADLINE_EXCEEDED"
        score.may_go.set()
        assert first.result().number == 1
    batcher.close()
    assert score.rows == [1]


def test_changes_run_between_batches_before_those_that_wait() -> None:
    score = Doubling()
    batcher = make_batcher(score)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(batcher.ask, make_request(1))
        until(lambda: score.rows == [1])
        second = pool.submit(batcher.ask, make_request(2))
        until(lambda: len(batcher._waiting) == 1)
        change = pool.submit(batcher.between, lambda: setattr(score, "number", 2))
        until(lambda: len(batcher._work) == 1)
        score.may_go.set()
        change.result()
        assert (first.result().number, second.result().number) == (1, 2)
    with pytest.raises(ZeroDivisionError):
        batcher.between(lambda: 1 / 0)
    batcher.close()
