"""Paths that no client library sends: each is refused, and the server lives."""

from __future__ import annotations

import http.client
import json

from embedps.data.dataset import Dataset
from tests.builders import Replay
from tests.serving.server.builders import NAME, ask_rest, serving

MODEL = f"/v1/models/{NAME}"
PATHS = (
    "/",
    "//v1/models",
    "/v1/models/",
    "/v1/models/../../etc/passwd",
    "/v1/models/..%2f..%2fetc%2fpasswd",
    f"{MODEL}%00",
    f"{MODEL}/versions/-1",
    f"{MODEL}/versions/{10**30}",
    f"{MODEL}/labels/{'x' * 8000}",
    f"{MODEL}/metadata/metadata",
    f"{MODEL}:predict:predict",
    f"{MODEL}:regress",
    f"/metrics/..{MODEL}",
    "http://elsewhere/v1/models/none",
    "*",
    "/v1/models/" + "a" * 50_000,
)


def test_hostile_paths_are_refused_and_the_server_lives(replay: Replay, dataset: Dataset) -> None:
    replay.commit(replay.numbers[0])
    with serving(replay.directory, dataset) as (_, _, addresses):
        host = addresses.rest.removeprefix("http://")
        for method in ("GET", "POST"):
            for path in PATHS:
                connection = http.client.HTTPConnection(host, timeout=30)
                connection.putrequest(method, path, skip_host=True)
                connection.putheader("Host", "localhost")
                connection.putheader("Content-Length", "2")
                connection.endheaders(b"{}")
                answer = connection.getresponse()
                said = answer.read()
                assert 400 <= answer.status <= 501, (method, path, answer.status)
                assert b"root:" not in said
                connection.close()
        code, found = ask_rest(f"{addresses.rest}{MODEL}")
        assert (code, found["model_version_status"][0]["state"]) == (200, "AVAILABLE")
        assert json.dumps(found)
