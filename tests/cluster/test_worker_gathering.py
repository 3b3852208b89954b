"""Workers of TF_CONFIG without servers find each other before TensorFlow starts."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from embedps import kernels
from embedps.cluster.worker_gathering import gather
from embedps.data.dataset import Dataset
from embedps.errors import ClusterError, ServerLostError
from tests.builders import TINY_DLRM_FLAGS
from tests.commands import start, until


def free_addresses(count: int) -> list[str]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    for probe in probes:
        probe.close()
    return addresses


def started(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def connected(address: str) -> socket.socket:
    found: list[socket.socket] = []

    def connects() -> bool:
        try:
            host, _, port = address.rpartition(":")
            found.append(socket.create_connection((host, int(port)), timeout=1))
        except OSError:
            return False
        return True

    until(connects)
    return found[0]


def test_all_go_on_once_all_are_there_and_strangers_do_not_count() -> None:
    addresses = free_addresses(3)
    workers = [started(lambda r=rank: gather(addresses, r, wait_secs=60)) for rank in (1, 0)]  # type: ignore[misc]
    for said in (b"", b"7\n", b"-1\n", b"0\n", b"x" * 99, b"GET / HTTP/1.1\r\n\r\n", b"\xff 1\n"):
        with connected(addresses[0]) as stranger:
            stranger.sendall(said)
    with connected(addresses[0]) as gone:  # and then waited for again
        gone.sendall(f"2 {kernels.versions()}\n".encode())
    workers.append(started(lambda: gather(addresses, 2, wait_secs=60)))
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()


def test_a_worker_of_other_versions_is_refused() -> None:
    addresses = free_addresses(2)

    def come() -> None:
        with connected(addresses[0]) as other:
            other.sendall(b"1 embedps 9.9, TensorFlow 2.20.0 and checkpoint format 9\n")
            other.recv(1)

    started(come)
    told = f"worker 1 must run {kernels.versions()}, as this process does, but runs embedps 9.9, "
    with pytest.raises(ClusterError, match=re.escape(told)):
        gather(addresses, 0, wait_secs=60)


def test_who_waits_in_vain_ends_with_a_line(clicks: Dataset, tmp_path: Path) -> None:
    for rank, other in ((0, 1), (1, 0)):
        task = {"cluster": {"worker": free_addresses(2)}, "task": {"type": "worker", "index": rank}}
        process = start(
            "embedps.train",
            "--model=dlrm",
            *TINY_DLRM_FLAGS,
            f"--data={clicks.directory}",
            f"--model-dir={tmp_path}",
            "--eval=none",
            "--wait-secs=0.5",
            TF_CONFIG=json.dumps(task),
        )
        out, err = process.communicate(timeout=120)
        assert process.returncode == ServerLostError.exit_code, f"{out}\n{err}"
        assert f"waited 0 s for worker {other} of TF_CONFIG; run the same command" in err
