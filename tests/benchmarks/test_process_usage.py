"""The benchmarks' count of what processes used: none of a command's processes is left out."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from benchmarks import process_usage
from benchmarks.child import ChildError
from tests.benchmarks.builders import needs_ss

_WROTE = 3_000_000
_SENT = 5_000_000
_BUSY_SECS = 0.5

# It works in a process of its own, whose grandchild writes, burns a processor and sends to itself.
_PROGRAM = f"""
import subprocess, sys, time

GRANDCHILD = '''
import socket, sys, time
open(sys.argv[1], "wb", buffering=0).write(bytes({_WROTE}))
assert len(open(sys.argv[1], "rb", buffering=0).read()) == {_WROTE}
with socket.create_server(("127.0.0.1", 0)) as server:
    client = socket.create_connection(server.getsockname())
    there, _ = server.accept()
    for _ in range({_SENT} // 50_000):
        client.sendall(bytes(50_000))
        assert there.recv(50_000, socket.MSG_WAITALL)
    began = time.process_time()
    wall = time.monotonic()
    while time.process_time() < began + {_BUSY_SECS} or time.monotonic() < wall + 2:
        pass
'''
subprocess.run([sys.executable, "-c", GRANDCHILD, sys.argv[1]], check=True)
"""


@needs_ss
@pytest.mark.multiprocess
def test_a_grandchild_that_has_ended_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "grandparent.py").write_text(_PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    used = process_usage.of_command("grandparent", str(tmp_path / "file"))
    assert used.cpu_secs >= _BUSY_SECS
    assert 0 <= used.kernel_secs <= used.cpu_secs
    assert _WROTE <= used.written_bytes < 1.1 * _WROTE
    assert used.read_bytes >= _WROTE
    assert _SENT <= used.sent_bytes < 1.1 * _SENT


@needs_ss
def test_a_command_that_fails_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "failing.py").write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ChildError, match="failing ended with 3"):
        process_usage.of_command("failing")


@needs_ss
def test_the_sockets_of_other_processes_do_not_count():
    with socket.create_server(("127.0.0.1", 0)) as server, process_usage.SentBytes(1 << 30) as sent:
        client = socket.create_connection(server.getsockname())
        there, _ = server.accept()
        client.sendall(bytes(1000))
        there.recv(1000)
        sent._look()
    client.close()
    there.close()
    assert sent.num_bytes == 0


def test_this_process_counts_what_it_writes(tmp_path: Path):
    before = process_usage.of_this_process()
    with open(tmp_path / "file", "wb", buffering=0) as file:
        file.write(bytes(_WROTE))
    used = process_usage.of_this_process() - before
    assert _WROTE <= used.written_bytes < 1.1 * _WROTE
    assert used.times(2).written_bytes == 2 * used.written_bytes
