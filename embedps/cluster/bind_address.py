"""Binds a task's server to its own address instead of all addresses.

The gRPC of tf.distribute has no authentication: anyone who reaches the port can run any graph in
the process. TensorFlow's servers listen on every address of the machine. Here they are bound to
the task's address in TF_CONFIG, or to the one in EMBEDPS_BIND; see docs/security.md.
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

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def ip_of(address: str) -> _Address:
    """Gives the IP address at which a task listens: its own in TF_CONFIG, or EMBEDPS_BIND.

    Raises:
      UsageError: as `listen_at` does.
    """
    override = os.environ.get(VARIABLE, "")
    return _parse_override(override) if override else _resolve(address)


def listen_at(address: str) -> None:
    """Binds the servers that TensorFlow starts in this process from now on to one IP address.

    Args:
      address: the task's own, HOST:PORT; EMBEDPS_BIND overrides the host if it is set.

    Raises:
      UsageError: the host is a wildcard, cannot be resolved or is not of this machine, and
        EMBEDPS_BIND is not set; or the port is not valid.
    """
    ip = ip_of(address)
    port = address.rpartition(":")[2]
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise UsageError(
            f"a task's own address must be HOST:PORT with a port in [1, 65535] but is {address!r}"
        )
    if not ip.is_unspecified:
        _check_local(ip, address)
    library = ctypes.CDLL(str(build.build()))
    library.embedps_set_bind_address.argtypes = [ctypes.c_char_p]
    library.embedps_set_bind_address(b"" if ip.is_unspecified else str(ip).encode())


def check_listening(address: str) -> None:
    """Checks that no server here listens on every address, unless EMBEDPS_BIND allows it.

    Raises:
      ClusterError: one does.
    """
    override = os.environ.get(VARIABLE, "")
    if override and _parse_override(override).is_unspecified:
        return
    port = int(address.rpartition(":")[2])
    for host, listening in listening_addresses():
        if listening == port and ipaddress.ip_address(host).is_unspecified:
            raise ClusterError(
                f"the server of {address} listens at every address of this machine, and embedps "
                f"could not prevent it: allow this by {VARIABLE}=0.0.0.0 if the network is closed "
                "to others"
            )


def listening_addresses() -> list[tuple[str, int]]:
    """Lists IP address and port of each TCP socket on which this process listens; on Linux."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            own.add(os.readlink(descriptor))
        except OSError:
            continue  # the descriptor of this listing
    found = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            lines = Path("/proc/self/net", name).read_text().splitlines()[1:]
        except OSError:
            continue  # this machine lacks the address family
        for fields in map(str.split, lines):
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                host, port = fields[1].split(":")
                words = [host[i : i + 8] for i in range(0, len(host), 8)]
                packed = b"".join(int(word, 16).to_bytes(4, "little") for word in words)
                found.append((socket.inet_ntop(family, packed), int(port, 16)))
    return found


def _parse_override(text: str) -> _Address:
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
    # IPv4 first: `localhost` resolves to both, and other tasks prefer IPv4 too.
    ips = sorted((ipaddress.ip_address(f[4][0]) for f in found), key=lambda ip: ip.version)
    if not ips or ips[0].is_unspecified:
        raise UsageError(
            f"a task's own address must not be a wildcard but is {address!r}: anyone who reaches "
            f"its server controls it; set {VARIABLE}=0.0.0.0 to listen at every address if the "
            "network is closed to others"
        )
    return ips[0]


def _check_local(ip: _Address, address: str) -> None:
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family) as probe:
            probe.bind((str(ip), 0))
    except OSError as error:
        raise UsageError(
            f"{address} is {ip} here, on which this machine cannot listen ({error.strerror}): set "
            f"{VARIABLE} to an IP address of this machine"
        ) from error
