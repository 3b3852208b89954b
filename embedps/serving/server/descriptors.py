"""Descriptors of the process, shared out to the ports, so that clients of one leave the other's."""

from __future__ import annotations

import dataclasses
import resource

from embedps.serving.server import grpc_server, http_server

_ENOUGH = 1 << 16


@dataclasses.dataclass(frozen=True)
class Connections:
    """How many clients may have open."""

    grpc: int
    rest: int


def share_out() -> Connections:
    """Raises the process' soft limit as far as it may; a quarter is left for files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    limit = most if soft == resource.RLIM_INFINITY else soft
    return Connections(
        grpc=min(grpc_server.MAX_CONNECTIONS, limit // 2),
        rest=min(http_server.MAX_CONNECTIONS, limit // 4),
    )
