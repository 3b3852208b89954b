"""REST: TensorFlow Serving's `:predict`, status and metadata; health and metrics."""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from embedps.errors import UsageError
from embedps.serving.server.http_server import MAX_CONNECTIONS, Head, HttpServer, Reply
from embedps.serving.server.json_answer import answer_json
from embedps.serving.server.json_bodies import (
    json_bytes,
    message_json,
    status_json,
)
from embedps.serving.server.json_reader import JsonRequest
from embedps.serving.server.metrics import CONTENT_TYPE
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.request_error import Code, RequestError, short_text

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
    r"/v1/models/([^/:]+)(?:/versions/([0-9]{1,18})|/labels/([^/:]+))?(:predict|/metadata)?"
)
_HEALTH = "/healthz"
_METRICS = ("/metrics", "/monitoring/prometheus/metrics")
_JSON = {"Content-Type": "application/json"}

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
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """Takes the port; answers begin with `start`.

        Args:
          api: the models.
          port: 0 takes a free one.
          certificate: files of the certificate chain and its key, for TLS.
          max_connections: that clients may have open.

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
        try:
            self._server = HttpServer(
                _Answers(api),
                host=host,
                port=port,
                context=context,
                max_connections=max_connections,
            )
        except OSError as error:
            raise UsageError(
                f"{host}:{port} must be an address of this machine with a free port "
                f"({error.strerror}): give another --rest-port or --host"
            ) from error
        self.port = self._server.port

    def start(self) -> None:
        """Begins to answer."""
        self._server.start()

    def stop(self, grace_secs: float) -> None:
        """Takes no further requests, and answers those that it has, within a time."""
        self._server.stop(grace_secs)


class _Answers:
    """What is at each path."""

    def __init__(self, api: ModelApi) -> None:
        self.api = api

    def begin(self, head: Head) -> Reply | Callable[[bytes], Reply]:
        """Checks the token and the path, before there is a body."""
        try:
            work = self._work_of(head)
        except RequestError as error:
            return self.refuse(error.code, str(error), _STATUS[error.code])
        if head.path == _HEALTH:
            return self._reply(work, b"")
        return lambda body: self._reply(work, body)

    def refuse(self, code: Code, text: str, status: int) -> Reply:
        """Gives an error, and counts it."""
        text = short_text(text)
        with contextlib.suppress(RequestError), self.api.counting("rest"):
            raise RequestError(code, text)
        return Reply(status=status, body=json_bytes({"error": text}), headers=_JSON)

    def _reply(self, work: Callable[[bytes], _Answered], body: bytes) -> Reply:
        try:
            with self.api.counting("rest"):
                answer, headers = work(body)
        except RequestError as error:
            answer = json_bytes({"error": str(error)})
            return Reply(status=_STATUS[error.code], body=answer, headers=_JSON)
        return Reply(status=200, body=answer, headers={**_JSON, **headers})

    def _work_of(self, head: Head) -> Callable[[bytes], _Answered]:
        if head.method not in ("GET", "POST"):
            raise RequestError("UNIMPLEMENTED", "a request must be a GET or a POST")
        is_get = head.method == "GET"
        if not is_get or head.path != _HEALTH:  # orchestrators have no token
            self.api.check_token(head.headers.get("authorization"))
        if is_get:
            return lambda _: self._get(head.path)
        name, version, action = _parts(head.path)
        if action != ":predict":
            raise RequestError("UNIMPLEMENTED", "a POST must be to /v1/models/NAME:predict")
        return lambda body: self._predict(name, version, body)

    def _get(self, path: str) -> _Answered:
        if path == _HEALTH:
            if not self.api.health.is_serving:
                raise RequestError("UNAVAILABLE", "the server does not serve now")
            return b'{"status": "SERVING"}', {}
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

    def _predict(self, name: str, version: int | str | None, body: bytes) -> _Answered:
        given = JsonRequest(body)
        answer = self.api.predict(name, given.read, version=version, signature=given.signature)
        said = answer_json(answer, by_row=given.by_row)
        return said, {"Embedps-Manifest": str(answer.number)}


def _parts(path: str) -> tuple[str, int | str | None, str]:
    """Gives the model's name, the version or its label, and the action of a path."""
    found = _MODEL.fullmatch(path)
    if found is None:
        raise RequestError(
            "NOT_FOUND",
            "a path must be /v1/models/NAME[/versions/N|/labels/REF][:predict|/metadata]",
        )
    name, version, label, action = found.groups()
    number = None if version is None else int(version)
    return unquote(name), number if label is None else unquote(label), action or ""
