"""Readers of a server get the changes that readers of the files get, whatever breaks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from embedps.checkpoint import Reached, Reset, Rows, follow
from embedps.checkpoint.chain import Position
from embedps.checkpoint.changes import changes_of, messages_of
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.follow_served import METHOD
from embedps.checkpoint.lease import read_leases
from embedps.checkpoint.refs import move_ref
from embedps.errors import CheckpointError, CorruptCheckpointError, UsageError
from embedps.serving.server.grpc_server import GrpcServer
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.sent_changes import SentChanges
from tests.checkpoint.builders import CheckpointRun, Record, make_run, row_batch
from tests.checkpoint.readers import Cache, newest_of, rows_of
from tests.commands import until


class Model:
    """What is asked of a served model."""

    def __init__(self, directory: CheckpointDirectory) -> None:
        self.name, self.directory = "clicks", directory


def serve(directory: CheckpointDirectory, *, port: int = 0, token: str | None = None) -> GrpcServer:
    api = ModelApi(token=token)
    api.models["clicks"] = Model(directory)  # type: ignore[assignment]
    server = GrpcServer(api, host="127.0.0.1", port=port, max_waiting=4)
    server.start()
    return server


@pytest.fixture
def run(tmp_path: Path) -> CheckpointRun:
    return make_run(tmp_path)


@pytest.fixture
def server(run: CheckpointRun) -> Iterator[GrpcServer]:
    server = serve(run.directory)
    yield server
    server.stop(5)


def url_of(server: GrpcServer, model: str = "clicks") -> str:
    return f"grpc://127.0.0.1:{server.port}/{model}"


class Reader:
    """Follows in a thread until it is closed."""

    def __init__(self, url: str) -> None:
        self.cache, self._stop = Cache(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url,), daemon=True)
        self._thread.start()

    def _run(self, url: str) -> None:
        for change in follow(url, stop=self._stop):
            self.cache.take(change)

    def reaches(self, directory: CheckpointDirectory) -> None:
        number = newest_of(directory).save_number
        until(lambda: getattr(self.cache.position, "number", None) == number)
        assert self.cache.rows == rows_of(directory)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def described(changes: Any) -> list[Any]:
    """What a reader sees; batches with their rows, joined within a save."""
    found: list[Any] = []
    for change in changes:
        if isinstance(change, Rows):
            key = ("rows", change.group, change.save)
            rows = change.batch.to_pylist()
            if found and found[-1][0] == key:
                found[-1][1].extend(rows)
            else:
                found.append((key, rows))
        else:
            found.append((change,))
    return found


def test_reader_of_a_server_gets_what_a_reader_of_files_gets(run, server):
    theirs = described(follow(run.directory, idle_secs=0))
    assert described(follow(url_of(server), idle_secs=0)) == theirs
    position = Position(history=newest_of(run.directory).history, number=2)
    (more,) = [c for c in follow(url_of(server), position, idle_secs=0) if isinstance(c, Reached)]
    assert (more.position.number, more.complete) == (3, True)
    until(lambda: read_leases(run.directory) == [])


def test_reader_goes_on_with_the_run_and_after_the_servers_return(run):
    server = serve(run.directory)
    reader = Reader(url_of(server))
    try:
        reader.reaches(run.directory)
        run.delta([Record("C2", 9, 9.0), Record("C1", 0, None)])
        reader.reaches(run.directory)
        server.stop(5)
        run.delta([Record("C1", 5, 5.0)])
        server = serve(run.directory, port=server.port)
        reader.reaches(run.directory)
        assert reader.cache.resets == 1
    finally:
        reader.close()
        server.stop(5)


def test_reader_of_a_ref_follows_it_back(run, server):
    move_ref(run.directory, "prod", 3)
    changes: Any = follow(url_of(server), ref="prod")
    steps = (c.manifest.number for c in changes if isinstance(c, Reached) and c.complete)
    assert next(steps) == 3
    move_ref(run.directory, "prod", 1)
    assert next(steps) == 1
    changes.close()
    until(lambda: read_leases(run.directory) == [])


def test_token_is_asked_for(run):
    server = serve(run.directory, token="secret")
    try:
        with pytest.raises(UsageError, match="refuses: a request must have the header"):
            next(follow(url_of(server)))
        assert isinstance(next(follow(url_of(server), token="secret")), Reset)
        with pytest.raises(UsageError, match="token is of a server"):
            next(follow(run.directory, token="secret"))
    finally:
        server.stop(5)


def test_what_cannot_be_followed_is_refused_in_one_line(run, server):
    for model, ref, message in (
        ("other", None, "refuses: no model is named 'other'"),
        ("clicks", "none", "refuses: .*none"),
    ):
        with pytest.raises(UsageError, match=message):
            next(follow(url_of(server, model), ref=ref))
    for url in ("grpc://host/clicks", "grpc://host:1", "grpc://host:1/a/b", "grpc://[::1/x"):
        with pytest.raises(UsageError, match="must be grpc://HOST:PORT/MODEL but is"):
            next(follow(url))
    newest = run.directory.file(newest_of(run.directory).chain[-1].files[0])
    newest.write_bytes(newest.read_bytes()[:-1] + b"\0")
    with pytest.raises(UsageError, match=r"refuses: .*shard"):
        list(follow(url_of(server)))
    server.stop(5)
    with pytest.raises(CheckpointError, match="cannot be followed"):
        next(follow(url_of(server)))


@pytest.mark.parametrize(
    "request_", [b"", b"[" * 60_000, b"{}", b'{"model": 1, "ref": 2, "position": 3}', b"x" * 70_000]
)
def test_requests_that_are_none_are_refused(server, request_):
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            next(channel.unary_stream(METHOD)(request_, timeout=60))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_readers_have_so_many_places(run):
    api = ModelApi()
    api.models["clicks"] = Model(run.directory)  # type: ignore[assignment]
    sent = SentChanges(api, most=1)
    request = b'{"model": "clicks", "ref": null, "position": null}'
    first: Any = sent.messages(request, lambda end: True)
    next(first)
    with pytest.raises(Exception, match="1 readers follow already"):
        next(sent.messages(request, lambda end: True))
    first.close()
    assert next(sent.messages(request, lambda end: True))


def test_large_batches_are_sent_in_parts(run):
    manifest = newest_of(run.directory)
    batch = row_batch([Record("C1", i, float(i)) for i in range(60_000)])
    rows = Rows(group="dim2", save=manifest.chain[0], batch=batch)
    messages = list(messages_of(manifest, [rows]))
    assert len(messages) == 1 + -(-batch.nbytes // 2**20)
    assert max(map(len, messages)) < 1.1 * 2**20
    found = [change.batch for change in changes_of(messages, "x") if isinstance(change, Rows)]
    assert list(itertools.chain(*(each.to_pylist() for each in found))) == batch.to_pylist()


def test_messages_that_are_none_are_told(run):
    manifest = newest_of(run.directory)
    reached = Reached(
        position=Position(history="h", number=1), step=1, manifest=manifest, complete=True
    )
    head, good = messages_of(manifest, [reached])
    for wrong in (b"", b"\1\0\0\0[", good[:-3], head[:-9], b"\2\0\0\0{}", b"\xff" * 40):
        with pytest.raises(CorruptCheckpointError, match=r"server.* change"):
            list(changes_of([head, wrong], "server"))
    with pytest.raises(CorruptCheckpointError, match="no manifest was sent"):
        list(changes_of([good], "server"))
