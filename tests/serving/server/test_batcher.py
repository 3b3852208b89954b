"""The queue is bounded, deadlines hold, and one request does not spoil or hold up the others."""

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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


def make_lists(*lengths: int) -> Request:
    lists = (np.arange(sum(lengths)), np.array(lengths))
    return dataclasses.replace(make_request(*range(len(lengths))), lists=(lists,))


class Doubling:
    """Doubles numbers, once it may; refuses negative ones."""

    def __init__(self) -> None:
        self.may_go, self.number = threading.Event(), 1
        self.rows: list[int] = []
        self.batches: list[list[float]] = []

    def __call__(self, request: Request) -> Answer:
        self.rows.append(request.rows)
        self.batches.append(request.floats[0].tolist())
        assert self.may_go.wait(60)
        if (request.floats < 0).any():
            raise ValueError("negative")
        return Answer(number=self.number, outputs={"score": request.floats[0] * 2})


@contextmanager
def batching(**options: Any) -> Iterator[tuple[Doubling, Batcher, ThreadPoolExecutor]]:
    """A batcher, what it asks, and threads that ask it; it is closed once these have ended."""
    score = Doubling()
    known: dict[str, Any] = {"max_batch_rows": 4, "max_part_rows": 4, "max_waiting": 3}
    known |= {"wait_secs": 0.0, "on_batch": lambda _: None}
    batcher = Batcher(score, **known | options)
    with ThreadPoolExecutor(8) as pool:
        yield score, batcher, pool
    batcher.close()


def ask_while_busy(pool: ThreadPoolExecutor, batcher: Batcher, *requests: Request) -> list[Any]:
    """Asks one after the other, and returns once the first is scored and the others wait."""
    asked = [pool.submit(batcher.ask, requests[0])]
    until(lambda: batcher._busy)
    for count, request in enumerate(requests[1:], 1):
        asked.append(pool.submit(batcher.ask, request))
        until(lambda n=count: len(batcher._waiting) + len(batcher._large) == n)
    return asked


def test_requests_share_batches_and_a_full_queue_refuses() -> None:
    requests = (make_request(2, 3), make_request(-4), make_request(5, 6))
    with batching() as (score, batcher, pool):
        first, *waiting = ask_while_busy(pool, batcher, make_request(1), *requests)
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
    with pytest.raises(RequestError, match="the server ends"):
        batcher.ask(make_request(1))


def test_who_waited_too_long_is_not_scored() -> None:
    with batching() as (score, batcher, pool):
        (first,) = ask_while_busy(pool, batcher, make_request(1))
        with pytest.raises(RequestError) as late:
            batcher.ask(make_request(2), timeout=0.01)
        assert late.value.code == "DEADLINE_EXCEEDED"
        score.may_go.set()
        assert first.result().number == 1
    assert score.rows == [1]


def test_changes_run_between_batches_before_those_that_wait() -> None:
    with batching() as (score, batcher, pool):
        first, second = ask_while_busy(pool, batcher, make_request(1), make_request(2))
        change = pool.submit(batcher.between, lambda: setattr(score, "number", 2))
        until(lambda: len(batcher._work) == 1)
        score.may_go.set()
        change.result()
        assert (first.result().number, second.result().number) == (1, 2)
        with pytest.raises(ZeroDivisionError):
            batcher.between(lambda: 1 / 0)


def test_others_wait_for_one_part_of_a_large_request() -> None:
    rows = list[int]()
    with batching(max_waiting=9, on_batch=rows.append) as (score, batcher, pool):
        large, *small = ask_while_busy(
            pool,
            batcher,
            make_request(*range(10)),
            *(make_request(20), make_request(21, 22), make_request(30, 31, 32)),
        )
        score.may_go.set()
        assert large.result().outputs["score"].tolist() == [*range(0, 20, 2)]
        found = [each.result().outputs["score"].tolist() for each in small]
        assert found == [[40], [42, 44], [60, 62, 64]]
    # Others share batches as without it.
    parts = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert score.batches == [parts[0], [20, 21, 22], parts[1], [30, 31, 32], parts[2]]
    assert rows == [4, 3, 4, 3, 2]


def test_large_requests_are_scored_one_after_the_other() -> None:
    with batching(max_waiting=4) as (score, batcher, pool):
        asked = ask_while_busy(
            pool,
            batcher,
            make_request(*range(5)),
            *(make_request(*range(10, 16)), make_request(*range(20, 25)), make_request(30)),
        )
        # Of those that may wait, half may be large.
        with pytest.raises(RequestError, match=r"2 requests of more than 4 records .* wait") as no:
            batcher.ask(make_request(*range(5)))
        assert no.value.code == "RESOURCE_EXHAUSTED"
        score.may_go.set()
        for each in asked:
            each.result()
    assert [batch[0] for batch in score.batches] == [0, 30, 4, 10, 14, 20, 24]


def test_lists_of_many_values_make_a_request_large() -> None:
    with batching() as (score, batcher, _):  # parts of up to 4 * 64 values
        score.may_go.set()
        for request, rows in (
            (make_lists(200, 56), [2]),
            (make_lists(200, 57), [1, 1]),
            (make_lists(0, 300, 0, 1), [1, 1, 2]),
        ):
            assert len(batcher.ask(request).outputs["score"]) == request.rows
            assert score.rows == rows
            score.rows.clear()


def test_all_parts_are_of_one_model() -> None:
    with batching() as (score, batcher, pool):
        large, small, after = ask_while_busy(
            pool, batcher, make_request(*range(10)), make_request(20), make_request(*range(30, 35))
        )
        change = pool.submit(batcher.between, lambda: setattr(score, "number", 2))
        until(lambda: len(batcher._work) == 1)
        score.may_go.set()
        change.result()
        assert (large.result().number, small.result().number, after.result().number) == (1, 1, 2)
    # The change waits for the one that has begun, and others do not wait for the change.
    assert [batch[0] for batch in score.batches] == [0, 20, 4, 8, 30, 34]


def test_a_part_that_fails_or_comes_too_late_ends_its_request() -> None:
    with batching() as (score, batcher, pool):
        failing, other = ask_while_busy(
            pool, batcher, make_request(*range(4), -1, *range(5)), make_request(20)
        )
        score.may_go.set()
        with pytest.raises(RequestError, match="ValueError: negative"):
            failing.result()
        assert other.result().outputs["score"].tolist() == [40]
        assert score.rows == [4, 1, 4]
        score.may_go.clear()
        score.rows.clear()
        with pytest.raises(RequestError, match="deadline passed"):
            batcher.ask(make_request(*range(10)), timeout=0.01)
        score.may_go.set()
    assert score.rows in ([], [4])  # whether it had begun by then


def test_lanes_score_at_once_and_a_change_waits_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("embedps.serving.server.batcher._LEAST_BESIDE", 2)
    with batching(lanes=2) as (score, batcher, pool):
        two = [pool.submit(batcher.ask, make_request(n, n)) for n in (1, 2)]
        until(lambda: len(score.batches) == 2)  # neither has ended
        changed = pool.submit(batcher.between, lambda: len(score.batches))
        until(lambda: bool(batcher._work))
        third = pool.submit(batcher.ask, make_request(3))
        until(lambda: bool(batcher._waiting))
        score.may_go.set()
        assert changed.result() == 2  # the third came after the change
        assert [each.result().outputs["score"].tolist() for each in two] == [[2, 2], [4, 4]]
        assert third.result().outputs["score"].tolist() == [6]


def test_one_part_of_a_large_request_at_a_time_beside_others() -> None:
    with batching(lanes=2) as (score, batcher, pool):
        large = pool.submit(batcher.ask, make_request(*range(9)))
        until(lambda: score.rows == [4])
        small = pool.submit(batcher.ask, make_request(1))
        until(lambda: len(score.rows) == 2)
        assert sorted(score.rows) == [1, 4]  # and not its next part
        score.may_go.set()
        assert small.result().outputs["score"].tolist() == [2]
        assert large.result().outputs["score"].tolist() == [2 * n for n in range(9)]


def test_random_requests_and_changes_see_one_model_each() -> None:
    """Each answer is of one number, while changes come: no lane scores during a change."""
    inside, numbers = [0], [1]
    lock = threading.Lock()

    def score(request: Request) -> Answer:
        with lock:
            inside[0] += 1
        number = numbers[0]
        outputs = {"score": request.floats[0] * number}
        with lock:
            inside[0] -= 1
        return Answer(number=number, outputs=outputs)

    def change() -> None:
        assert inside[0] == 0
        numbers[0] += 1

    options: dict[str, Any] = {"max_batch_rows": 8, "max_part_rows": 4, "max_waiting": 64}
    batcher = Batcher(score, wait_secs=0.0, on_batch=lambda _: None, lanes=3, **options)

    def ask(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(200):
            values = random.integers(1, 9, random.integers(1, 12)).astype(np.float32)
            answer = batcher.ask(make_request(*values))
            assert answer.outputs["score"].tolist() == (values * answer.number).tolist()

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, seed) for seed in range(7)]
        for _ in range(50):
            batcher.between(change)
        for each in asking:
            each.result()
    batcher.close()
    assert numbers[0] == 51


def test_few_rows_wait_for_the_batch_under_way() -> None:
    with batching(lanes=2, max_waiting=9) as (score, batcher, pool):
        asked = ask_while_busy(pool, batcher, *(make_request(n) for n in (1, 2, 3)))
        score.may_go.set()
        for each in asked:
            each.result()
    assert score.batches == [[1], [2, 3]]
