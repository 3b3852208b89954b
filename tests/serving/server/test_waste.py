"""Answers to messages that are no columns are held back, and others are not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.serving.server.waste import Waste
from tests.builders import read_split
from tests.serving.builders import tensors
from tests.serving.server.builders import predict_request, serving, until

MIB = 1 << 20


def test_wasted_bytes_are_paid_one_after_the_other() -> None:
    now, waits = [100.0], list[float]()
    waste = Waste(waits.append, max_waiting=1, clock=lambda: now[0])
    for size, timeout in ((MIB, None), (32 * MIB, None), (64 * MIB, 9.0), (64 * MIB, 2.0)):
        waste.pay(size, timeout=timeout)
    waste.pay(64 * MIB, timeout=-1.0)
    assert waits == [0.5, 1.5, 2.0, 0.0]  # a MiB is free, and no one waits beyond a deadline
    now[0] += 10
    waste.pay(32 * MIB, timeout=None)
    assert waits[4:] == [0.5]


def test_few_answers_are_held_back() -> None:
    may_go, waits = threading.Event(), list[float]()

    def wait(secs: float) -> None:
        waits.append(secs)
        assert may_go.wait(60)

    waste = Waste(wait, max_waiting=2, clock=lambda: 0.0)
    with ThreadPoolExecutor(2) as pool:
        held = [pool.submit(waste.pay, 64 * MIB, timeout=None) for _ in range(2)]
        until(lambda: len(waits) == 2)
        waste.pay(64 * MIB, timeout=None)  # at once
        may_go.set()
        for each in held:
            each.result()
    waste.pay(64 * MIB, timeout=None)
    assert sorted(waits) == [1.0, 2.0, 3.0]


def test_only_what_is_no_column_counts(
    trained: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid = list[int]()
    monkeypatch.setattr(Waste, "pay", lambda _, count, *, timeout: paid.append(count))
    columns = ("I1", "I2", "C1", "C2", "C3")
    request = predict_request(tensors(read_split(dataset), columns))
    good = request.SerializeToString()
    padded = good + b"\x7a\x80\x80\x80\x01" + bytes(2 * MIB)  # of field 15
    for name, array in tensors(read_split(dataset), columns).items():
        request.inputs[name].Clear()
        request.inputs[name].dtype = 9 if array.dtype == np.int64 else 1
        request.inputs[name].tensor_shape.dim.add(size=len(array))
        values = request.inputs[name].int64_val if array.dtype == np.int64 else None
        (request.inputs[name].float_val if values is None else values).extend(array.tolist())
    with serving(CheckpointDirectory(trained), dataset) as (_, _, addresses):
        client = addresses.client
        client.predict(good)
        client.predict(request)
        assert max(paid) <= 0
        client.predict(padded)
        assert len(padded) - 3 * len(good) <= paid[-1] <= 2 * MIB
        with pytest.raises(grpc.RpcError, match="no model is named"):
            client.predict(predict_request({}, name="other"))
        assert 0 < paid[-1] < 100
    assert len(paid) == 4
