"""Which address a task's server listens at: its own, never any.

gRPC of tf.distribute has no authentication: who reaches a port can run any graph in its process.
TensorFlow's servers would listen at every address of the machine. Here they are held to the one
that TF_CONFIG has for the task, or that EMBEDPS_BIND says; see docs/security.md.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import re
import socket
from pathlib import Path

from embedps.errors import ClusterError, UsageError
from embedps.kernels import build

VARIABLE = "EMBEDPS_BIND"


def listen_at(address: str) -> None:
    """Holds the servers that TensorFlow starts in this process from now on to one IP address.

    Args:
      address: the task's own, HOST:PORT; with EMBEDPS_BIND set, that one is taken instead.

    Raises:
      UsageError: the host is a wildcard, cannot be resolved or is not of this machine, and
        EMBEDPS_BIND does not say where to listen; or the port is none.
    """
    told = os.environ.get(VARIABLE, "")
    ip = _told(told) if told else _resolve(address)
    port = address.rpartition(":")[2]
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise UsageError(
            f"a task's own address must be HOST:PORT with a port in [1, 65535] but is {address!r}"
        )
    if not ip.is_unspecified:
        _check_local(ip, address)
    library = ctypes.CDLL(str(build.build()))
    library.embedps_listen_on.argtypes = [ctypes.c_char_p]
    library.embedps_listen_on(b"" if ip.is_unspecified else str(ip).encode())


def check_listening(address: str) -> None:
    """Checks that no server of this process listens at every address, unless EMBEDPS_BIND says so.

    Raises:
      ClusterError: one does.
    """
    told = os.environ.get(VARIABLE, "")
    if told and _told(told).is_unspecified:
        return
    port = int(address.rpartition(":")[2])
    for host, listening in listening_addresses():
        if listening == port and ipaddress.ip_address(host).is_unspecified:
            raise ClusterError(
                f"the server of {address} listens at every address of this machine, and it could "
                f"not be kept from it: allow that by {VARIABLE}=0.0.0.0 where the network is "
                "closed to others"
            )


def listening_addresses() -> list[tuple[str, int]]:
    """IP address and port of each TCP socket that this process listens at; of Linux."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            own.add(os.readlink(descriptor))
        except OSError:
            continue  # the listing's own
    found = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            lines = Path("/proc/self/net", name).read_text().splitlines()[1:]
        except OSError:
            continue  # this machine has no such family
        for fields in map(str.split, lines):
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                host, port = fields[1].split(":")
                words = [host[i : i + 8] for i in range(0, len(host), 8)]
                packed = b"".join(int(word, 16).to_bytes(4, "little") for word in words)
                found.append((socket.inet_ntop(family, packed), int(port, 16)))
    return found


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _told(text: str) -> _Address:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        raise UsageError(f"{VARIABLE} must be an IP address but is {text!r}") from None


def _resolve(address: str) -> _Address:
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{host!r}, this task's host, cannot be resolved ({error}): set {VARIABLE} to the IP "
            "address to listen at"
        ) from error
    # IPv4 first: `localhost` is both, and so is what others connect to.
    ips = sorted((ipaddress.ip_address(f[4][0]) for f in found), key=lambda ip: ip.version)
    if not ips or ips[0].is_unspecified:
        raise UsageError(
            f"a task's own address must not be a wildcard but is {address!r}: its server does what "
            f"anyone asks who reaches it; set {VARIABLE}=0.0.0.0 to listen at every address where "
            "the network is closed to others"
        )
    return ips[0]


def _check_local(ip: _Address, address: str) -> None:
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family) as probe:
            probe.bind((str(ip), 0))
    except OSError as error:
        raise UsageError(
            f"{address} is {ip} here, at which this machine cannot listen ({error.strerror}): set "
            f"{VARIABLE} to an IP address of its own"
        ) from error
