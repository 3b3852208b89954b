"""A server process beside a trainer that dies, compactions, kills, and a store that is slow."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow.fs as pafs
import pytest

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.retention import KeepNewest, collect_garbage
from embedps.checkpoint.tools.compact import compact
from embedps.data.dataset import Dataset
from tests.builders import Replay, latest, read_split
from tests.commands import SMALL, finish, read_until, start, train
from tests.serving.builders import tensors
from tests.serving.server.builders import (
    NAME,
    Client,
    predict_request,
    score_of,
    serving,
    status,
    until,
)
from tests.serving.server.slow_proxy import SlowProxy


class Server:
    """A server process and a client of it."""

    def __init__(self, model_dir: Path | str, port: int = 0, **environment: str) -> None:
        self.process = start(
            "embedps.serve",
            *("--model-dir", str(model_dir), "--name", NAME),
            *("--port", str(port), "--rest-port", "0"),
            **environment,
        )
        words = read_until(self.process, "serves ").splitlines()[-1].split()
        self.address = words[words.index("at") + 1]
        self.client = Client(self.address)

    def version(self) -> int:
        return int(status(self.client).model_version_status[0].version)

    def message(self) -> str:
        each = status(self.client).model_version_status[0]
        return str(each.status.error_message)

    def score(self, dataset: Dataset) -> tuple[int, np.ndarray]:
        given = tensors(read_split(dataset).slice(0, 20))
        response = self.client.predict(predict_request(given))
        return int(response.model_spec.version.value), score_of(response)

    def check(self, dataset: Dataset, model_dir: Path, number: int) -> None:
        want = embedps.load(model_dir, number=number).predict(read_split(dataset).slice(0, 20))
        found, scores = self.score(dataset)
        assert found == number
        np.testing.assert_array_equal(scores, want["score"])

    def kill(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.communicate()

    def end(self) -> str:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        return finish(self.process)


def stop(trainer: subprocess.Popen[str]) -> None:
    trainer.send_signal(signal.SIGTERM)
    finish(trainer)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_server_outlives_trainers_compactions_and_kills(tmp_path: Path, dataset: Dataset) -> None:
    model_dir = tmp_path / "m"
    directory = CheckpointDirectory(model_dir)
    flags = (*SMALL, "--epochs=1000000", "--eval=none", "--delta-secs=0.3", "--max-read-cost=1000")
    trainer = train(dataset, model_dir, *flags)
    until(directory.numbers)
    server = Server(model_dir)
    first = server.version()
    until(lambda: server.version() > first)
    # The trainer is killed: the newest checkpoint is served on.
    trainer.kill()
    trainer.communicate()
    died_at = latest(model_dir).number
    until(lambda: server.version() == died_at)
    server.check(dataset, model_dir, died_at)
    # Its deltas are compacted away while they are served.
    compacted = compact(directory)
    assert compacted is not None
    until(lambda: server.version() == compacted.manifest.number)
    server.check(dataset, model_dir, compacted.manifest.number)
    # A resumed trainer is followed.
    trainer = train(dataset, model_dir, *flags)
    until(lambda: server.version() > compacted.manifest.number)
    # A server that hangs for longer than its lease finds neither its manifest nor its deltas.
    server.process.send_signal(signal.SIGSTOP)
    lagging = max(directory.numbers())
    until(lambda: max(directory.numbers()) > lagging + 2)
    stop(trainer)
    for lease in directory.leases_dir.iterdir():
        lease.unlink()  # as one that expired
    assert compact(directory) is not None
    with directory.exclusive():
        collect_garbage(directory, [KeepNewest(1)])
    (newest,) = directory.numbers()
    assert len(directory.read(newest).chain) == 1
    server.process.send_signal(signal.SIGCONT)
    until(lambda: server.version() == newest)
    server.check(dataset, model_dir, newest)
    # A killed server serves again at its port, beside another of the same model.
    port = int(server.address.split(":")[1])
    server.kill()
    server = Server(model_dir, port)
    assert server.address == f"127.0.0.1:{port}"
    server.check(dataset, model_dir, newest)
    with serving(directory, dataset) as (_, _, addresses):
        given = tensors(read_split(dataset).slice(0, 20))
        np.testing.assert_array_equal(
            score_of(addresses.client.predict(predict_request(given))), server.score(dataset)[1]
        )
        assert len(list(directory.leases_dir.iterdir())) == 3  # the killed one's has yet to expire
    server.end()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_slow_or_absent_store_delays_no_answer(
    trained: Path, replay: Replay, dataset: Dataset, s3_dir: str
) -> None:
    first, second, third = replay.numbers[:3]
    replay.commit(first)
    store, bucket_path = pafs.FileSystem.from_uri(s3_dir)
    pafs.copy_files(str(replay.directory.path), bucket_path, destination_filesystem=store)

    def commit(number: int) -> None:
        name = replay.directory.manifest_path(number).name
        with store.open_output_stream(f"{bucket_path}/manifests/{name}") as file:
            file.write(replay.source.manifest_path(number).read_bytes())

    proxy = SlowProxy(int(urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0))
    server = Server(s3_dir, AWS_ENDPOINT_URL=f"http://127.0.0.1:{proxy.port}")
    server.check(dataset, trained, first)
    # The store gives the manifest, but not yet the rows.
    proxy.hold(b"ARROW1")
    commit(second)
    assert proxy.held.wait(60)
    for _ in range(20):
        assert server.score(dataset)[0] == first
    assert server.version() == first
    proxy.release()
    until(lambda: server.version() == second)
    server.check(dataset, trained, second)
    # The store is gone, and comes back.
    proxy.hang_up()
    until(lambda: server.message() != "")
    server.check(dataset, trained, second)
    commit(third)
    proxy.come_back()
    until(lambda: server.version() == third)
    server.check(dataset, trained, third)
    until(lambda: server.message() == "")
    assert "no newer checkpoint is served" in server.end()
    proxy.close()
