"""gRPC: TensorFlow Serving's Predict, GetModelMetadata and GetModelStatus, and health."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc
import tensorflow as tf
from google.protobuf.message import DecodeError

from embedps.errors import UsageError
from embedps.serving.server import messages
from embedps.serving.server.arrivals import ArrivingCalls
from embedps.serving.server.model_api import SIGNATURE, ModelApi, secs_left
from embedps.serving.server.request_error import RequestError, invalid
from embedps.serving.server.request_reader import parsed_bytes
from embedps.serving.server.request_size import (
    MAX_REQUEST_BYTES,
    Place,
    column_bytes,
    most_values,
)
from embedps.serving.server.requests import Format, Request
from embedps.serving.server.sent_changes import FOLLOW_SERVICE, SentChanges
from embedps.serving.server.tensor_values import (
    claimed_text_bytes,
    claimed_values,
    fill,
    read_vector,
)
from embedps.serving.server.waste import Waste

_MAX_SMALL_BYTES = 1 << 16  # of a message besides PredictRequest
_MIN_ARRIVING = 64  # calls whose message is on its way; each has a thread
_MAX_ARRIVING_CHECKS = 32  # of health, whose messages are small and come at once
_MESSAGE_SECS = 60.0
_MAX_HELD_BACK = 64  # answers for wasted bytes; each has a thread
_MAX_WATCHES = 128  # of health; each has a thread
_MAX_FOLLOWERS = 32  # of changes; each has a thread, and a lease
_OTHER_THREADS = 8  # for calls that are refused, and requests that do not wait for scores
MAX_CONNECTIONS = 4096
_HANDSHAKE_MS = 10_000
_IDLE_MS = 300_000  # without a call; a client connects again by itself
_KEEPALIVE_MS = 60_000  # after which a silent client is asked whether it lives

_HEALTH = f"/{messages.HEALTH_SERVICE}/"

M = TypeVar("M")


class GrpcServer:
    """Serves models over gRPC."""

    def __init__(
        self,
        api: ModelApi,
        *,
        host: str,
        port: int,
        max_waiting: int,
        certificate: tuple[Path, Path] | None = None,
        max_connections: int = MAX_CONNECTIONS,
        message_secs: float = _MESSAGE_SECS,
    ) -> None:
        """Takes the port; answers begin with `start`.

        Args:
          api: the models.
          port: 0 takes a free one.
          max_waiting: requests that may wait for scores; each has a thread.
          certificate: files of the certificate chain and its key, for TLS.
          max_connections: that clients may have open; the next is closed.
          message_secs: within which a call's message must come whole.

        Raises:
          UsageError: the port is in use, or the certificate cannot be read.
        """
        self._api = api
        self._watches = threading.BoundedSemaphore(_MAX_WATCHES)
        self._followers = SentChanges(api, most=_MAX_FOLLOWERS)
        arriving = max(max_waiting, _MIN_ARRIVING)
        self._arrivals = ArrivingCalls(arriving, message_secs)
        self._arriving_checks = ArrivingCalls(_MAX_ARRIVING_CHECKS, message_secs)
        self._ended = threading.Event()
        self._ends = threading.Event()
        self._waste = Waste(self._ends.wait, max_waiting=_MAX_HELD_BACK)
        self._watcher = threading.Thread(
            target=self._end_late, args=(message_secs / 8,), name="arrivals", daemon=True
        )
        threads = max_waiting + arriving + _MAX_ARRIVING_CHECKS + _MAX_WATCHES + _MAX_HELD_BACK
        threads += _MAX_FOLLOWERS + _OTHER_THREADS
        self._server = grpc.server(
            ThreadPoolExecutor(threads, thread_name_prefix="grpc"),
            interceptors=[_Tokens(api)],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_allowed_incoming_connections", max_connections),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", _HANDSHAKE_MS),
            ],
            maximum_concurrent_rpcs=threads,  # the next gets RESOURCE_EXHAUSTED
        )
        self._server.add_generic_rpc_handlers(self._handlers())
        name = f"[{host}]" if ":" in host else host  # of IPv6
        self.port = self._bind(f"{name}:{port}", certificate)

    def _bind(self, address: str, certificate: tuple[Path, Path] | None) -> int:
        try:
            if certificate is None:
                return int(self._server.add_insecure_port(address))
            chain, key = (path.read_bytes() for path in certificate)
            credentials = grpc.ssl_server_credentials([(key, chain)])
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError:
            raise UsageError(
                f"{address} must be an address of this machine with a free port, and a certificate "
                "must be of its key: give another --port or --host, or mend the files"
            ) from None

    def _handlers(self) -> list[Any]:
        """Makes handlers of many messages, of which they take one: on the wire it is the same.

        gRPC's own for one message wait for it without a bound, before they call anybody.
        """

        def answering(kind: Any, answer: Any, arrivals: ArrivingCalls = self._arrivals) -> Any:
            return grpc.stream_unary_rpc_method_handler(
                self._answering(kind, answer, arrivals), response_serializer=_bytes_of
            )

        check = answering(messages.HealthCheckRequest, self._check, self._arriving_checks)
        methods = {
            messages.PREDICTION_SERVICE: {
                "Predict": answering(None, self._predict),
                "GetModelMetadata": answering(messages.GetModelMetadataRequest, self._metadata),
            },
            messages.MODEL_SERVICE: {
                "GetModelStatus": answering(messages.GetModelStatusRequest, self._status)
            },
            FOLLOW_SERVICE: {"Changes": grpc.stream_stream_rpc_method_handler(self._changes)},
            messages.HEALTH_SERVICE: {
                "Check": check,
                "Watch": grpc.stream_stream_rpc_method_handler(
                    self._watch, response_serializer=_bytes_of
                ),
            },
        }
        return [grpc.method_handlers_generic_handler(*each) for each in methods.items()]

    def start(self) -> None:
        """Begins to answer."""
        self._server.start()
        self._watcher.start()

    def stop(self, grace_secs: float) -> None:
        """Takes no further requests, and waits for those that it has."""
        self._api.health.end()
        self._ends.set()
        self._followers.end()
        self._server.stop(grace_secs).wait()
        self._ended.set()

    def _end_late(self, pause_secs: float) -> None:
        while not self._ended.wait(pause_secs):
            self._arrivals.end_late()
            self._arriving_checks.end_late()

    def _answering(
        self, kind: Any, answer: Callable[[Any, Any], Any], arrivals: ArrivingCalls
    ) -> Callable[[Iterator[bytes], Any], Any]:
        """Makes a handler. It parses the message itself: gRPC would call a wrong one INTERNAL."""

        def handle(requests: Iterator[bytes], context: Any) -> Any:
            data = self._take(arrivals, requests, context)
            try:
                with self._api.counting("grpc"):
                    return answer(data if kind is None else _parse(kind, data), context)
            except RequestError as error:
                _abort(context, error)

        return handle

    def _take(self, arrivals: ArrivingCalls, requests: Iterator[bytes], context: Any) -> bytes:
        try:
            return arrivals.take(requests, context)
        except RequestError as error:
            _refuse(self._api, context, error)

    def _predict(self, data: bytes, context: Any) -> Any:
        used: list[int] = []
        try:
            return self._predicted(data, context.time_remaining(), used)
        finally:
            self._waste.pay(len(data) - sum(used), timeout=context.time_remaining())

    def _predicted(self, data: bytes, timeout: float | None, used: list[int]) -> Any:
        """Answers; adds the bytes of columns that the request has to `used`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        secs_left(deadline)
        spec, usual = _spec_ahead(data), None
        wanted: Sequence[str] = ()
        if spec is not None:
            usual = self._api.usual_request(spec.name, spec.signature_name, data)
        with self._api.room.place() as parsed:
            if usual is None:
                forms = self._api.forms(spec.name, spec.signature_name) if spec is not None else []
                num_bytes = parsed_bytes(data, forms or self._api.forms())
                parsed.admit(num_bytes, sent=len(data))
                message = _parse(messages.PredictRequest, data)
                spec, wanted = message.model_spec, message.output_filter

            def read(form: Format, place: Place) -> Request:
                if usual is None:
                    request = _read(message, form, place, len(data))
                else:
                    place.admit(usual.num_bytes, sent=len(data))
                    request = usual.read()
                used.append(2 * place.num_bytes)  # in a message, an integer may be longer
                return request

            answer = self._api.predict(
                spec.name,
                read,
                version=_version_of(spec),
                signature=spec.signature_name,
                wanted=wanted,
                timeout=secs_left(deadline),
            )
        response = messages.PredictResponse()
        response.model_spec.name = spec.name
        response.model_spec.signature_name = spec.signature_name or SIGNATURE
        response.model_spec.version.value = answer.number
        for name, array in answer.outputs.items():
            fill(response.outputs[name], array)
        return response

    def _metadata(self, request: Any, context: Any) -> Any:
        if list(request.metadata_field) != ["signature_def"]:
            raise invalid("metadata_field must be ['signature_def']")
        spec = request.model_spec
        number, signatures = self._api.metadata(spec.name, _version_of(spec))
        response = messages.GetModelMetadataResponse()
        response.model_spec.name = spec.name
        response.model_spec.version.value = number
        response.metadata["signature_def"].Pack(signatures)
        return response

    def _status(self, request: Any, context: Any) -> Any:
        return self._api.status(request.model_spec.name, _version_of(request.model_spec))

    def _check(self, request: Any, context: Any) -> Any:
        if not self._is_known(request.service):
            raise RequestError("NOT_FOUND", f"no service is named {request.service!r}")
        return messages.HealthCheckResponse(status=self._health_of(request.service))

    def _watch(self, requests: Iterator[bytes], context: Any) -> Any:
        data = self._take(self._arriving_checks, requests, context)
        try:
            name = _parse(messages.HealthCheckRequest, data).service
        except RequestError as error:
            _abort(context, error)
        if not self._watches.acquire(blocking=False):
            # By this code a client does without its watch.
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{_MAX_WATCHES} clients watch already")
        try:
            context.add_callback(self._api.health.wake)
            for status in self._api.health.watch(lambda: self._health_of(name), context.is_active):
                yield messages.HealthCheckResponse(status=status)
        finally:
            self._watches.release()

    def _changes(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        data = self._take(self._arrivals, requests, context)
        try:
            yield from self._followers.messages(data, context.add_callback)
        except RequestError as error:
            _abort(context, error)

    def _health_of(self, service: str) -> str:
        if not self._is_known(service):
            return "SERVICE_UNKNOWN"
        return "SERVING" if self._api.health.is_serving else "NOT_SERVING"

    def _is_known(self, service: str) -> bool:
        services = ("", messages.PREDICTION_SERVICE, messages.MODEL_SERVICE)
        return service in services or service in self._api.models


class _Tokens(grpc.ServerInterceptor):
    """Refuses a call without the token by its headers: its message is not read."""

    def __init__(self, api: ModelApi) -> None:
        self._api = api

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        if details.method.startswith(_HEALTH):  # orchestrators have no token
            return continuation(details)
        try:
            self._api.check_token(dict(details.invocation_metadata).get("authorization"))
        except RequestError as refused:
            error = refused
        else:
            return continuation(details)

        def refuse(requests: Any, context: Any) -> Any:  # and asks for none
            _refuse(self._api, context, error)

        return grpc.stream_unary_rpc_method_handler(refuse)


def _refuse(api: ModelApi, context: Any, error: RequestError) -> NoReturn:
    with contextlib.suppress(RequestError), api.counting("grpc"):
        raise error
    _abort(context, error)


def _abort(context: Any, error: RequestError) -> NoReturn:
    context.abort(getattr(grpc.StatusCode, error.code), str(error))
    raise AssertionError  # abort raises


def _bytes_of(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _parse(kind: Callable[[], M], data: bytes) -> M:
    if kind is not messages.PredictRequest and len(data) > _MAX_SMALL_BYTES:
        raise invalid(f"the message must have at most {_MAX_SMALL_BYTES} bytes but has {len(data)}")
    message = kind()
    try:
        message.ParseFromString(data)  # type: ignore[attr-defined]
    except DecodeError:
        name = message.DESCRIPTOR.name  # type: ignore[attr-defined]
        raise invalid(f"the {len(data)} bytes must be a {name}") from None
    return message


def _spec_ahead(data: bytes) -> Any:
    """Reads a PredictRequest's model_spec if it comes first and is short, as clients send it."""
    if len(data) < 2 or data[0] != 0x0A or data[1] >= 0x80:
        return None
    try:
        return messages.ModelSpec.FromString(data[2 : 2 + data[1]])
    except DecodeError:
        return None


def _read(message: Any, form: Format, place: Place, sent: int) -> Request:
    form.check_names(set(message.inputs))
    values, texts = {}, {}
    for name, tensor in message.inputs.items():
        values[name] = claimed_values(tensor)
        if form.specs[name].dtype == tf.string:
            texts[name] = claimed_text_bytes(tensor)
    place.admit(column_bytes(form, values, texts), sent=sent)
    return form.request(
        {
            name: read_vector(name, tensor, form.specs[name].dtype, most=most_values(form, name))
            for name, tensor in message.inputs.items()
        }
    )


def _version_of(spec: Any) -> int | str | None:
    if spec.version_label:
        return str(spec.version_label)
    return int(spec.version.value) if spec.HasField("version") else None
