"""Health for those who ask and those who watch; a full queue; labels that no version has."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from embedps.data.dataset import Dataset
from embedps.serving.server import grpc_server as module
from embedps.serving.server import messages
from embedps.serving.server.arrivals import ArrivingCalls, _client_of
from embedps.serving.server.grpc_server import GrpcServer
from embedps.serving.server.json_bodies import status_json
from embedps.serving.server.json_reader import SMALL_BYTES
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.request_size import MAX_REQUEST_BYTES
from tests.builders import Replay, read_split
from tests.serving.builders import tensors
from tests.serving.server.builders import (
    Client,
    ask_rest,
    predict_request,
    serving,
    status,
    until,
)
from tests.serving.server.half_calls import HalfCalls

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
CHECK, WATCH = (f"/{messages.HEALTH_SERVICE}/{name}" for name in ("Check", "Watch"))
PREDICT = f"/{messages.PREDICTION_SERVICE}/Predict"
METADATA = f"/{messages.PREDICTION_SERVICE}/GetModelMetadata"
STATUS = f"/{messages.MODEL_SERVICE}/GetModelStatus"


@pytest.fixture(name="server")
def make_server() -> Iterator[tuple[ModelApi, GrpcServer]]:
    api = ModelApi()
    server = GrpcServer(api, host="127.0.0.1", port=0, max_waiting=4)
    server.start()
    yield api, server
    server.stop(5)


def watch(channel: grpc.Channel, service: str) -> Any:
    call = channel.unary_stream(
        f"/{messages.HEALTH_SERVICE}/Watch",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=messages.HealthCheckResponse.FromString,
    )
    return call(messages.HealthCheckRequest(service=service), timeout=60)


def test_watchers_are_told_of_each_change(server: tuple[ModelApi, GrpcServer]) -> None:
    api, grpc_server = server
    with grpc.insecure_channel(f"127.0.0.1:{grpc_server.port}") as channel:
        seen, unknown = watch(channel, ""), watch(channel, "clicks")
        assert next(seen).status == NOT_SERVING
        assert next(unknown).status == SERVICE_UNKNOWN
        api.health.set(True)
        assert next(seen).status == SERVING
        api.models["clicks"] = None  # type: ignore[assignment]
        api.health.set(True)
        assert next(unknown).status == SERVING
        # Who goes away frees his place; who stays is told of the end.
        unknown.cancel()
        until(lambda: grpc_server._watches._value == 127)
        api.health.set(False)
        grpc_server.stop(5)
        assert [each.status for each in seen] == [NOT_SERVING]
    until(lambda: grpc_server._watches._value == 128)


def test_a_model_that_loads_is_loading_and_not_unknown(
    server: tuple[ModelApi, GrpcServer],
) -> None:
    api, grpc_server = server
    api._expected = {"clicks": 7}
    client = Client(f"127.0.0.1:{grpc_server.port}")
    (found,) = status(client).model_version_status
    assert (found.version, found.state) == (7, messages.ModelVersionStatus.State.Value("LOADING"))
    assert found.status.error_code == 0
    assert status_json(api.status("clicks"))["model_version_status"][0]["state"] == "LOADING"
    with pytest.raises(grpc.RpcError, match="'clicks' is not loaded: ask again") as refused:
        client.predict(predict_request({}))
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.RpcError, match="no model is named 'other': there are 'clicks'") as no:
        client.predict(predict_request({}, name="other"))
    assert no.value.code() == grpc.StatusCode.NOT_FOUND
    client.close()


def test_a_name_of_a_request_is_quoted_in_part(server: tuple[ModelApi, GrpcServer]) -> None:
    client = Client(f"127.0.0.1:{server[1].port}")
    name = "é\n\x1b[31m" * 5000
    service, kind = messages.MODEL_SERVICE, messages.GetModelStatusResponse
    request = messages.GetModelStatusRequest()
    request.model_spec.name = name
    for ask, code in (
        (lambda: client.call(service, "GetModelStatus", request, kind), "NOT_FOUND"),
        (lambda: client.predict(predict_request({}, name=name * 20)), "NOT_FOUND"),
        (lambda: client.predict(predict_request({}, name=name * 100)), "INVALID_ARGUMENT"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            ask()
        said = refused.value.details()
        assert refused.value.code() == getattr(grpc.StatusCode, code)
        assert len(said.encode()) <= 1000
        assert said.isprintable()
    # A message of a fixed few fields is not read at all.
    request.model_spec.name = "a" * (1 << 16)
    with pytest.raises(grpc.RpcError, match="at most 65536 bytes but has 65544"):
        client.call(service, "GetModelStatus", request, kind)
    client.close()


def test_grpcs_own_client_side_health_check(server: tuple[ModelApi, GrpcServer]) -> None:
    """A channel with `healthCheckConfig` sends no request before the server serves."""
    api, grpc_server = server
    config = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": ""},
    }
    options = [("grpc.service_config", json.dumps(config))]
    with grpc.insecure_channel(f"127.0.0.1:{grpc_server.port}", options) as channel:
        states: list[grpc.ChannelConnectivity] = []
        channel.subscribe(states.append, try_to_connect=True)
        until(lambda: grpc_server._watches._value == 127)
        assert grpc.ChannelConnectivity.READY not in states
        api.health.set(True)
        until(lambda: grpc.ChannelConnectivity.READY in states)


def test_a_malformed_watch_is_refused(server: tuple[ModelApi, GrpcServer]) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server[1].port}") as channel:
        call = channel.unary_stream(f"/{messages.HEALTH_SERVICE}/Watch")
        with pytest.raises(grpc.RpcError, match="must be a HealthCheckRequest") as refused:
            next(call(b"\x0a\xff", timeout=60))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_token_is_looked_at_before_the_message_is_read() -> None:
    """A message beyond the limit is refused as too large once it is read, and not before."""
    server = GrpcServer(ModelApi(token="secret"), host="127.0.0.1", port=0, max_waiting=4)
    server.start()
    large = bytes(MAX_REQUEST_BYTES + 1)
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.port}", options) as channel:
        for service, method in (
            (messages.PREDICTION_SERVICE, "Predict"),
            (messages.PREDICTION_SERVICE, "GetModelMetadata"),
            (messages.MODEL_SERVICE, "GetModelStatus"),
        ):
            call = channel.unary_unary(f"/{service}/{method}")
            for token in ("", "Bearer other", "Bearer secret"):
                with pytest.raises(grpc.RpcError) as refused:
                    call(large, metadata=[("authorization", token)], timeout=60)
                code = "RESOURCE_EXHAUSTED" if token == "Bearer secret" else "UNAUTHENTICATED"
                assert refused.value.code().name == code
        check = channel.unary_unary(f"/{messages.HEALTH_SERVICE}/Check")
        assert check(b"", timeout=60) == b"\x08\x02"  # NOT_SERVING; without a token
    server.stop(5)


def test_connections_are_bounded() -> None:
    api = ModelApi()
    server = GrpcServer(api, host="::1", port=0, max_waiting=4, max_connections=4)
    server.start()
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(8):
            opened.append(socket.create_connection(("::1", server.port), timeout=60))
            stack.callback(opened[-1].close)
        ends = select.poll()
        for each in opened:
            each.setblocking(False)
            ends.register(each, select.POLLRDHUP)
        until(lambda: len(ends.poll(0)) >= 4)
        for each in opened:
            each.close()
        with grpc.insecure_channel(f"[::1]:{server.port}") as channel:
            grpc.channel_ready_future(channel).result(60)
    server.stop(5)


def clients_of(arrivals: ArrivingCalls) -> list[str]:
    with arrivals._lock:
        return [call.client for call in arrivals._calls]


@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1"])
@pytest.mark.parametrize("part", [None, b"a part"])
def test_half_sent_calls_leave_others_their_places(
    server: tuple[ModelApi, GrpcServer], source: str, part: bytes | None
) -> None:
    """More than the server has threads, from another address or from the honest client's own."""
    places = {STATUS: module._MIN_ARRIVING, WATCH: module._MAX_ARRIVING_CHECKS}
    arrivals = {STATUS: server[1]._arrivals, WATCH: server[1]._arriving_checks}
    paths = {STATUS: (PREDICT, METADATA, STATUS), WATCH: (CHECK, WATCH)}
    with contextlib.ExitStack() as stack:
        hostile = {kind: HalfCalls(server[1].port, source) for kind in paths}
        for kind, calls in hostile.items():
            stack.callback(calls.close)
            sent = [calls.send(paths[kind][i % len(paths[kind])], part) for i in range(400)]
            # The oldest ended for the next, and the newest are there.
            ended = calls.wait_for_end(400 - places[kind])
            assert {stream for stream, _ in ended} <= set(sent)
            assert all(b"grpc-status\x011" in said for _, said in ended)  # CANCELLED
            assert clients_of(arrivals[kind]) == [source] * places[kind]
        client = Client(f"127.0.0.1:{server[1].port}")
        stack.callback(client.close)
        for _ in range(20):
            with pytest.raises(grpc.RpcError, match="no model is named 'clicks'"):
                client.predict(predict_request({}))
            check = client._channel.unary_unary(CHECK)
            assert check(b"", timeout=60) == b"\x08\x02"
            seen = watch(client._channel, "")
            assert next(seen).status == NOT_SERVING
            seen.cancel()
        # Each of these took a place of the hostile client's, once: a place that is free is taken.
        for kind, found in arrivals.items():
            assert clients_of(found) == [source] * (places[kind] - 1)
            hostile[kind].wait_for_end()


def test_a_client_takes_no_place_of_another(server: tuple[ModelApi, GrpcServer]) -> None:
    arrivals, most = server[1]._arriving_checks, module._MAX_ARRIVING_CHECKS
    slow, hostile = (HalfCalls(server[1].port, f"127.0.0.{i}") for i in (3, 2))
    for _ in range(2):
        slow.send(CHECK, b"a part")
    until(lambda: len(clients_of(arrivals)) == 2)
    for _ in range(100):
        hostile.send(CHECK)
    hostile.wait_for_end(100 - (most - 2))
    assert clients_of(arrivals) == ["127.0.0.3"] * 2 + ["127.0.0.2"] * (most - 2)
    # Nor does a connection take one of another of the same address.
    second = HalfCalls(server[1].port, "127.0.0.2")
    second.send(CHECK)
    hostile.wait_for_end()
    for _ in range(100):
        hostile.send(CHECK)
    hostile.wait_for_end(100)
    assert len({call.connection for call in arrivals._calls}) == 3
    for each in (slow, hostile, second):
        each.close()
    until(lambda: not clients_of(arrivals))


@pytest.mark.parametrize("path", [CHECK, WATCH, PREDICT, METADATA, STATUS])
@pytest.mark.parametrize("part", [None, b"a part"])
def test_a_message_must_come_in_time(path: str, part: bytes | None) -> None:
    api = ModelApi()
    server = GrpcServer(api, host="127.0.0.1", port=0, max_waiting=4, message_secs=0.1)
    server.start()
    calls = HalfCalls(server.port)
    sent = calls.send(path, part)
    ((stream, said),) = calls.wait_for_end()
    assert stream == sent
    assert b"grpc-status\x011" in said  # CANCELLED
    counted = 'embedps_requests_total{api="grpc",code="CANCELLED"} 1'
    until(lambda: counted in api.metrics.text())
    assert not server._arrivals._calls
    assert not server._arriving_checks._calls
    calls.close()
    server.stop(5)
    server._watcher.join(60)
    assert not server._watcher.is_alive()


@pytest.mark.parametrize("path", [CHECK, WATCH, PREDICT, METADATA, STATUS])
def test_a_call_without_a_message_is_refused(
    server: tuple[ModelApi, GrpcServer], path: str
) -> None:
    calls = HalfCalls(server[1].port)
    calls.send(path, ends=True)
    ((_, said),) = calls.wait_for_end()
    assert b"a call must have one message but has none" in said
    calls.close()


def test_a_client_is_an_address_or_a_network() -> None:
    assert _client_of("ipv4:10.0.0.7:4711") == "10.0.0.7"
    assert _client_of("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4711") == "2001:db8:1:2::/64"
    assert _client_of("ipv6:%5Bfe80::1%25eth0%5D:4711") == "fe80::/64"


def test_a_full_queue_refuses_and_deadlines_hold(replay: Replay, dataset: Dataset) -> None:
    replay.commit(replay.numbers[0])
    part = tensors(read_split(dataset).slice(0, 3))
    request = predict_request(part)
    may_go, holds = threading.Event(), threading.Event()

    def hold() -> None:
        holds.set()
        assert may_go.wait(60)

    with serving(replay.directory, dataset, max_waiting=2) as (_, model, addresses):
        blocker = threading.Thread(target=model._batcher.between, args=(hold,))
        blocker.start()
        assert holds.wait(60)
        client = addresses.client
        grpc.channel_ready_future(client._channel).result(60)
        with pytest.raises(grpc.RpcError) as late:
            client.predict(request, timeout=2)  # in which the server gets it
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        call = client._channel.unary_unary(f"/{messages.PREDICTION_SERVICE}/Predict")
        waiting = [call.future(request.SerializeToString(), timeout=60)]
        until(lambda: len(model._batcher._waiting) == 2)  # the late one is not taken out
        for _ in range(50):
            with pytest.raises(grpc.RpcError, match="2 requests wait already") as full:
                client.predict(request)
            assert full.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        lists = {name: [None if x != x else x for x in a.tolist()] for name, a in part.items()}
        code, said = ask_rest(f"{addresses.rest}/v1/models/clicks:predict", {"inputs": lists})
        assert (code, said) == (429, "2 requests wait already: ask later")
        assert len(model._batcher._waiting) == 2
        may_go.set()
        blocker.join()
        answer = messages.PredictResponse.FromString(waiting[0].result())
        assert answer.model_spec.version.value == replay.numbers[0]
        # Without refs, a version has no label.
        with pytest.raises(grpc.RpcError, match="no version label 'stable': --ref") as unlabelled:
            client.predict(predict_request(part, label="stable"))
        assert unlabelled.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        url = f"{addresses.rest}/v1/models/clicks/labels/stable"
        for code, said in (ask_rest(url), ask_rest(f"{url}:predict", {"inputs": lists})):
            assert code == 400
            assert "'stable'" in said
        # A large body, which C++ reads and whose answer it writes, gets the scores of a small one.
        url = f"{addresses.rest}/v1/models/clicks:predict"
        code, small = ask_rest(url, {"inputs": lists})
        assert code == 200
        many = {name: values * 2000 for name, values in lists.items()}
        rows = [dict(zip(many, row, strict=True)) for row in zip(*many.values(), strict=True)]
        for body, kind in (({"inputs": many}, "outputs"), ({"instances": rows}, "predictions")):
            assert len(json.dumps(body)) > SMALL_BYTES
            code, large = ask_rest(url, body)
            assert code == 200
            np.testing.assert_allclose(large[kind], small["outputs"] * 2000, rtol=1e-6)
