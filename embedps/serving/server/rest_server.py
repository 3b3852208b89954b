"""REST: TensorFlow Serving's `:predict`, status and metadata; health and metrics."""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from embedps.errors import UsageError
from embedps.serving.server.json_answer import answer_json
from embedps.serving.server.json_bodies import (
    json_bytes,
    message_json,
    status_json,
)
from embedps.serving.server.json_reader import JsonRequest
from embedps.serving.server.metrics import CONTENT_TYPE
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.request_error import RequestError, invalid, no_labels

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
            code, body = _STATUS[error.code], json_bytes({"error": str(error)})
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
            return json_bytes(
                {
                    "model_spec": {"name": name, "signature_name": "", "version": str(number)},
                    "metadata": {"signature_def": message_json(signatures)},
                }
            ), {}
        if action:
            raise RequestError("UNIMPLEMENTED", f"{action[1:]} must be a POST")
        return json_bytes(status_json(self.api.status(name, version))), {}

    def _post(self, path: str) -> _Answered:
        self.api.check_token(self.headers.get("authorization"))
        name, version, action = _parts(path)
        if action != ":predict":
            raise RequestError("UNIMPLEMENTED", "a POST must be to /v1/models/NAME:predict")
        given = JsonRequest(self._body())
        answer = self.api.predict(name, given.read, version=version, signature=given.signature)
        body = answer_json(answer, by_row=given.by_row)
        return body, {"Embedps-Manifest": str(answer.number)}

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length[:18]) > MAX_BODY_BYTES:
            raise invalid(f"a POST must have a Content-Length of at most {MAX_BODY_BYTES}")
        return self.rfile.read(int(length))


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
