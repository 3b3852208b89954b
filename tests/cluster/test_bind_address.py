"""Servers listen on the task's own address; on all addresses only if EMBEDPS_BIND says so."""

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from embedps.cluster.bind_address import VARIABLE, listen_at, listening_addresses
from embedps.errors import UsageError
from tests import forked
from tests.builders import ROOT
from tests.commands import run_program

PROGRAM = """
import sys
import tensorflow as tf
from embedps.cluster import bind_address
bind_address.listen_at(sys.argv[1])
server = tf.distribute.Server(tf.train.ClusterSpec({"ps": [sys.argv[1]]}), job_name="ps")
bind_address.check_listening(sys.argv[1])
print("at", *(f"{host}|{port}" for host, port in bind_address.listening_addresses()))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(address: str, **env: str) -> set[str]:
    """The hosts at which a server of that address listens, in a process of its own."""
    shown = run_program("-c", PROGRAM, address, timeout_secs=120, **env)
    (line,) = (line for line in shown.splitlines() if line.startswith("at "))
    hosts, ports = zip(*(each.split("|") for each in line.split()[1:]), strict=True)
    assert set(ports) == {address.rpartition(":")[2]}
    return {host.removeprefix("::ffff:") for host in hosts}


@pytest.mark.multiprocess
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_server_listens_at_its_own_address_only(host):
    assert serve(f"{host}:{free_port()}") == {"127.0.0.1"}


@pytest.mark.multiprocess
def test_server_listens_where_it_is_told():
    """Also at every address: this is what TensorFlow does by itself."""
    assert serve(f"0.0.0.0:{free_port()}", **{VARIABLE: "127.0.0.1"}) == {"127.0.0.1"}
    assert serve(f"0.0.0.0:{free_port()}", **{VARIABLE: "0.0.0.0"}) <= {"::", "0.0.0.0"}


@pytest.mark.parametrize("address", ["0.0.0.0:1", ":1", "[::]:1"])
def test_wildcard_is_refused_unless_told(monkeypatch, address):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"must not be a wildcard but is .* EMBEDPS_BIND=0\.0"):
        listen_at(address)


def test_address_of_another_machine_is_refused(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"on which this machine cannot listen .* EMBEDPS_BIND"):
        listen_at("198.51.100.7:1")  # of the range for documentation: nobody's
    with pytest.raises(UsageError, match=r"cannot be resolved .* EMBEDPS_BIND"):
        listen_at("no-such-host.invalid:1")
    monkeypatch.setenv(VARIABLE, "a-name")
    with pytest.raises(UsageError, match="EMBEDPS_BIND must be an IP address but is 'a-name'"):
        listen_at("127.0.0.1:1")


@pytest.mark.parametrize("port", ["", "0", "-1", "65536", "99999999", "1e4", "9" * 5000, "x"])
def test_port_must_be_one(monkeypatch, port):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"must be HOST:PORT with a port in \[1, 65535\]"):
        listen_at(f"127.0.0.1:{port}")
    with pytest.raises(UsageError, match="cannot be resolved"):
        listen_at(f"{'a' * 300}.{port}:1")


def test_own_listening_sockets_are_seen():
    with socket.socket() as one, socket.socket(socket.AF_INET) as other:
        one.bind(("127.0.0.1", 0))
        one.listen()
        other.bind(("0.0.0.0", 0))
        other.listen()
        found = listening_addresses()
        assert ("127.0.0.1", one.getsockname()[1]) in found
        assert ("0.0.0.0", other.getsockname()[1]) in found
        port = one.getsockname()[1]
    assert port not in {listening for _, listening in listening_addresses()}


CLIENT = """
import json, sys
from pathlib import Path
from embedps.cluster import bind_address
from embedps.cluster.local_cluster import LocalCluster
cluster = LocalCluster(num_ps=1, num_workers=1, log_dir=Path(sys.argv[1]))
pids = [cluster.processes.pid(job, 0) for job in ("ps", "worker")]
listening = bind_address.listening_addresses()
print("found", json.dumps({"pids": pids, "client": listening}), flush=True)
sys.stdin.readline()
cluster.close()
"""


@pytest.mark.multiprocess
@pytest.mark.slow
def test_all_of_a_local_cluster_listens_at_the_loopback(tmp_path: Path):
    """Client, worker and parameter server; seen from outside, by their processes' sockets."""
    client = forked.start(
        ["-c", CLIENT, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert client.stdout is not None
        line = next(line for line in client.stdout if line.startswith("found "))
        found = json.loads(line.removeprefix("found "))
        hosts = {host for host, _ in found["client"]}
        for pid in found["pids"]:
            hosts |= set(listening_hosts(pid))
        assert hosts == {"::ffff:127.0.0.1"} or hosts == {"127.0.0.1"}
        client.communicate("\n", timeout=60)
        assert client.returncode == 0
    finally:
        client.kill()
        client.wait()


def listening_hosts(pid: int) -> list[str]:
    """By another reading of /proc than the library's."""
    sockets = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    inodes = set(re.findall(r"socket:\[(\d+)\]", " ".join(sockets)))
    hosts = []
    for line in Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            mapped = fields[1].startswith("0000000000000000FFFF00000100007F:")
            hosts.append("::ffff:127.0.0.1" if mapped else fields[1])
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            hosts.append("127.0.0.1" if fields[1].startswith("0100007F:") else fields[1])
    assert hosts
    return hosts
