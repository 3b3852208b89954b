"""REST: TensorFlow Serving's `:predict`, status and metadata; health and metrics."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import tensorflow as tf
from google.protobuf import json_format

from embedps.errors import UsageError
from embedps.serving.inputs import lengths_name, tensor_name
from embedps.serving.server.batcher import Answer
from embedps.serving.server.metrics import CONTENT_TYPE
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.request_error import RequestError, invalid, no_labels
from embedps.serving.server.requests import MAX_LIST_VALUES, MAX_ROWS, Format
from embedps.serving.server.tensor_values import Array

MAX_BODY_BYTES = 64 << 20
_MAX_CONNECTIONS = 256  # each has a thread
_IDLE_SECS = 60.0
_STATUS = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_MODEL = re.compile(
    r"/v1/models/([^/:]+)(?:/versions/(\d{1,18})|/labels/([^/:]+))?(:predict|/metadata)?"
)
_DIGITS = re.compile(r"-?[0-9]{1,20}")
_METRICS = ("/metrics", "/monitoring/prometheus/metrics")


_Answered = tuple[bytes, dict[str, str]]  # the body, and headers


class RestServer:
    """Serves models over HTTP."""

    def __init__(
        self,
        api: ModelApi,
        *,
        host: str,
        port: int,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        """Takes the port; answers begin with `start`.

        Args:
          api: the models.
          host: the address to listen on.
          port: 0 takes a free one.
          certificate: files of the certificate chain and its key, for TLS.

        Raises:
          UsageError: the port is in use, or the certificate cannot be read.
        """
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            try:
                context.load_cert_chain(*certificate)
            except ssl.SSLError as error:
                raise UsageError(
                    f"{certificate[0]} and {certificate[1]} must be a certificate and its key: "
                    f"{error}"
                ) from error
        handler = type("Handler", (_Handler,), {"api": api, "tls": context})
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise UsageError(
                f"{host}:{port} must be an address of this machine with a free port "
                f"({error.strerror}): give another --rest-port or --host"
            ) from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="rest", daemon=True, args=(0.1,)
        )

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Takes no further connections; requests that it has are answered."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a connection that a client breaks off."""


class _Handler(BaseHTTPRequestHandler):
    api: ModelApi
    tls: ssl.SSLContext | None
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECS

    def setup(self) -> None:
        if self.tls is not None:  # here, in the connection's thread: a client may be slow
            self.request.settimeout(_IDLE_SECS)
            self.request = self.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def log_message(self, *_: Any) -> None:
        """Writes no line per request."""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, answer: Callable[[str], _Answered]) -> None:
        code, headers = 200, dict[str, str]()
        try:
            with self.api.counting("rest"):
                body, headers = answer(urlsplit(self.path).path)
        except RequestError as error:
            code, body = _STATUS[error.code], _json({"error": str(error)})
        if code >= 400:
            self.close_connection = True  # a body may be unread
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _get(self, path: str) -> _Answered:
        if path == "/healthz":
            if not self.api.health.is_serving:
                raise RequestError("UNAVAILABLE", "the server does not serve now")
            return b'{"status": "SERVING"}', {}
        self.api.check_token(self.headers.get("authorization"))
        if path in _METRICS:
            return self.api.metrics.text().encode(), {"Content-Type": CONTENT_TYPE}
        name, version, action = _parts(path)
        if action == "/metadata":
            number, signatures = self.api.metadata(name, version)
            return _json(
                {
                    "model_spec": {"name": name, "signature_name": "", "version": str(number)},
                    "metadata": {"signature_def": _as_dict(signatures)},
                }
            ), {}
        if action:
            raise RequestError("UNIMPLEMENTED", f"{action[1:]} must be a POST")
        return _json(_status(self.api.status(name, version))), {}

    def _post(self, path: str) -> _Answered:
        self.api.check_token(self.headers.get("authorization"))
        name, version, action = _parts(path)
        if action != ":predict":
            raise RequestError("UNIMPLEMENTED", "a POST must be to /v1/models/NAME:predict")
        given = self._body()
        kinds = [kind for kind in ("instances", "inputs") if kind in given]
        if len(kinds) != 1 or not isinstance(given.get("signature_name", ""), str):
            raise invalid(
                'the body must be {"instances": [...]} or {"inputs": {...}}, and may name its '
                '"signature_name"'
            )
        by_row = kinds[0] == "instances"
        read = _of_rows if by_row else _of_columns
        answer = self.api.predict(
            name,
            lambda form: form.request(read(given[kinds[0]], form)),
            version=version,
            signature=given.get("signature_name", ""),
        )
        body = {"predictions": _rows(answer)} if by_row else {"outputs": _columns(answer)}
        return _json(body), {"Embedps-Manifest": str(answer.number)}

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length[:18]) > MAX_BODY_BYTES:
            raise invalid(f"a POST must have a Content-Length of at most {MAX_BODY_BYTES}")
        try:
            given = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise invalid(f"the body must be JSON: {error}") from None
        if not isinstance(given, dict):
            raise invalid("the body must be a JSON object")
        return given


def body_of(records: pa.Table) -> str:
    """Makes the body of a request for records, by row; a missing number is null."""
    rows = [
        {
            tensor_name(name): None if isinstance(x, float) and math.isnan(x) else x
            for name, x in row.items()
        }
        for row in records.to_pylist()
    ]
    return json.dumps({"instances": rows})


def _parts(path: str) -> tuple[str, int | None, str]:
    """Gives the model's name, the version and the action of a path."""
    found = _MODEL.fullmatch(path)
    if found is None:
        raise RequestError(
            "NOT_FOUND", "a path must be /v1/models/NAME[/versions/N][:predict|/metadata]"
        )
    name, version, label, action = found.groups()
    if label is not None:
        raise no_labels(unquote(label))
    return unquote(name), None if version is None else int(version), action or ""


def _of_columns(given: Any, form: Format) -> dict[str, Array]:
    if len(form.specs) == 1 and not isinstance(given, dict):
        given = dict.fromkeys(form.specs, given)
    if not isinstance(given, dict):
        raise invalid('"inputs" must be an object with a list per tensor')
    form.check_names(given.keys())
    return {name: _array(name, values, form) for name, values in given.items()}


def _of_rows(given: Any, form: Format) -> dict[str, Array]:
    if not isinstance(given, list):
        raise invalid('"instances" must be a list')
    if len(form.specs) == 1:  # then each may be the value itself
        (only,) = form.specs
        given = [row if isinstance(row, dict) and only in row else {only: row} for row in given]
    if not all(isinstance(row, dict) for row in given):
        raise invalid('"instances" must be a list of objects with a value per column')
    names = given[0].keys() if given else form.specs.keys() - map(lengths_name, form.lists)
    for place, row in enumerate(given):
        if row.keys() != names:
            raise invalid(f"each instance must have the columns of the first; {place} has not")
    lists = {tensor_name(column): lengths_name(column) for column in form.lists}
    form.check_names(names | {lists[name] for name in names if name in lists})
    arrays = {}
    for name in names:
        values = [row[name] for row in given]
        if name in lists:
            if not all(isinstance(value, list) for value in values):
                raise invalid(f"{name!r} must be a list in each instance")
            arrays[lists[name]] = np.array([len(value) for value in values], np.int64)
            values = [item for value in values for item in value]
        arrays[name] = _array(name, values, form)
    return arrays


def _array(name: str, values: Any, form: Format) -> Array:
    """Makes a vector of JSON's values; of numbers, null is a missing one."""
    spec = form.specs[name]
    if not isinstance(values, list):
        raise invalid(f"{name!r} must be a list")
    most = MAX_LIST_VALUES if name in form.list_values else MAX_ROWS
    if len(values) > most:
        raise invalid(f"{name!r} must have at most {most} values but has {len(values)}")
    if spec.dtype == tf.string:
        texts = [_bytes(name, value, form.missing.get(name)) for value in values]
        return np.array(texts, object)
    if not spec.dtype.is_floating:
        if all(type(value) is int for value in values):  # the usual ones: a tenth of the time
            with contextlib.suppress(OverflowError):
                return np.array(values, np.int64)
        missing = form.missing.get(name)
        return np.array([_integer(name, value, missing) for value in values], np.int64)
    allowed = (int, float, type(None))
    if wrong := {type(value).__name__ for value in values if type(value) not in allowed}:
        raise invalid(f"{name!r} must hold numbers of {spec.dtype.name} but has {min(wrong)}")
    try:
        return np.array(values, spec.dtype.as_numpy_dtype)
    except (OverflowError, TypeError) as error:
        raise invalid(f"{name!r} must hold numbers of {spec.dtype.name}: {error}") from None


def _integer(name: str, value: Any, missing: int | bytes | None) -> int:
    """Reads an int64. From 2^63 on, it is the id of the same bits, as a dataset has it.

    Args:
      name: of the tensor.
      value: a number, its digits as a text (a program of JavaScript has 53 bits of a number), or
        null.
      missing: what null means; None if it has no meaning.
    """
    if value is None and isinstance(missing, int):
        return missing
    if type(value) is str and _DIGITS.fullmatch(value):
        value = int(value)
    if type(value) is not int:
        raise invalid(
            f"{name!r} must hold whole numbers, or their digits as texts, but has "
            f"{json.dumps(value)[:40]}" + ("" if missing is None else "; null is a missing id")
        )
    if not -(1 << 63) <= value < 1 << 64 or (missing is None and value >> 63 > 0):
        raise invalid(f"{name!r} must hold numbers of 64 bits but has {value}")
    return value - (value >> 63 << 64) if value > 0 else value


def _bytes(name: str, value: Any, missing: int | bytes | None) -> bytes | None:
    """Reads a text, or bytes as TensorFlow Serving has them: {"b64": TEXT}; null is missing."""
    if value is None and missing is not None:
        return missing if isinstance(missing, bytes) else None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"b64"}:
            return base64.b64decode(value["b64"], validate=True)
    except (TypeError, ValueError):
        pass
    raise invalid(f'{name!r} must hold texts, or bytes as {{"b64": TEXT}} in Base64')


def _rows(answer: Answer) -> list[Any]:
    columns = {name: array.tolist() for name, array in answer.outputs.items()}
    if len(columns) == 1:
        return list(*columns.values())
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _columns(answer: Answer) -> Any:
    columns = {name: array.tolist() for name, array in answer.outputs.items()}
    return next(iter(columns.values())) if len(columns) == 1 else columns


def _status(response: Any) -> Mapping[str, Sequence[Any]]:
    """Gives a status as TensorFlow Serving writes it: with the code of no error, too."""
    states = response.model_version_status
    return {
        "model_version_status": [
            {
                "version": str(each.version),
                "state": _name(each, "state"),
                "status": {
                    "error_code": _name(each.status, "error_code"),
                    "error_message": each.status.error_message,
                },
            }
            for each in states
        ]
    }


def _name(message: Any, field: str) -> str:
    values = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    return str(values[getattr(message, field)].name)


def _as_dict(message: Any) -> Any:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _json(value: Any) -> bytes:
    return json.dumps(value, default=_text).encode()


def _text(value: bytes) -> str:
    """Gives an item's identifier, if it is a text, for JSON."""
    return value.decode(errors="replace")
