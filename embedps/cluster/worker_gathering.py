"""Gathers the workers of a TF_CONFIG before TensorFlow connects them.

TensorFlow's wait for the others heeds no signal and no deadline. So they wait here: the first
worker listens at its address until each other one has come, then lets all go on at once.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence

from embedps import kernels
from embedps.cluster.bind_address import ip_of
from embedps.console.lines import say
from embedps.console.shutdown import end_process
from embedps.errors import ServerLostError
from embedps.kernels.tasks import check_versions

_GO = b"embedps: go\n"
_ASK, _READY = b"?", b"!"
_POLL_SECS = 0.2
_READY_SECS = 5.0
_SAY_SECS = 10.0
_MOST_BYTES = 200


def gather(addresses: Sequence[str], rank: int, *, wait_secs: float) -> None:
    """Waits until all workers are there; ends the process if that takes too long.

    Args:
      addresses: of the workers, as TF_CONFIG has them.
      rank: of this one.
      wait_secs: the longest wait.

    Raises:
      ClusterError: a worker has other versions than the first, where this is raised.
    """
    wait = _Wait(wait_secs)
    if rank:
        while not _is_let_go(addresses[0], rank, wait):
            wait.pause(["0"])
        return
    host, port = str(ip_of(addresses[0])), int(addresses[0].rpartition(":")[2])
    come: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = stack.enter_context(
            socket.create_server((host, port), family=family, backlog=4 * len(addresses))
        )
        listener.settimeout(_POLL_SECS)
        while True:
            come = {r: each for r, each in come.items() if not _has_gone(each)}
            if not (missing := [str(r) for r in range(1, len(addresses)) if r not in come]):
                come = {r: each for r, each in come.items() if _is_ready(each)}
                if len(come) == len(addresses) - 1:
                    break
                continue
            wait.check(missing)  # also while strangers come
            try:
                other, _ = listener.accept()
            except TimeoutError:
                continue
            stack.enter_context(other)
            found, versions = _introduced(other)
            if 0 < found < len(addresses):
                check_versions(f"worker {found}", versions)
                come[found] = other
        for other in come.values():
            with contextlib.suppress(OSError):
                other.sendall(_GO)


class _Wait:
    """How long a worker has waited, and for whom."""

    def __init__(self, secs: float) -> None:
        self._secs, self._began = secs, time.monotonic()
        self._has_said = False

    def check(self, missing: Sequence[str]) -> None:
        waited = time.monotonic() - self._began
        what = f"worker {', '.join(missing)} of TF_CONFIG"
        if waited > self._secs:
            end_process(
                f"waited {self._secs:.0f} s for {what}; run the same command again to resume",
                ServerLostError.exit_code,
            )
        if waited > _SAY_SECS and not self._has_said:
            self._has_said = True
            say(f"embedps: waits for {what}, for {self._secs:.0f} s at most")

    def pause(self, missing: Sequence[str]) -> None:
        self.check(missing)
        time.sleep(_POLL_SECS)


def _is_let_go(first: str, rank: int, wait: _Wait) -> bool:
    """Comes to the first worker; tells whether it let this one go on."""
    host, _, port = first.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0) as connection:
            connection.sendall(f"{rank} {kernels.versions()}\n".encode())
            connection.settimeout(_POLL_SECS)
            said = b""
            while _GO.startswith(said) and said != _GO:
                try:
                    more = connection.recv(len(_GO))
                except TimeoutError:
                    wait.check(["0"])
                    continue
                if not more:
                    return False
                said += more
                if said == _ASK:
                    connection.sendall(_READY)
                    said = b""
            return said == _GO  # what else answers may be TensorFlow, of a run that ends
    except OSError:
        return False


def _introduced(other: socket.socket) -> tuple[int, str]:
    """Reads the rank and the versions of who came; rank 0 if it is no worker."""
    other.settimeout(1.0)
    said = b""
    try:
        while not said.endswith(b"\n") and len(said) <= _MOST_BYTES:
            if not (more := other.recv(1)):
                return 0, ""
            said += more
    except OSError:
        return 0, ""
    rank, _, versions = said.decode(errors="replace").strip().partition(" ")
    return int(rank) if rank.isdecimal() and len(rank) < 10 else 0, versions


def _is_ready(other: socket.socket) -> bool:
    """Asks who came whether it still waits; closes the connection if not."""
    try:
        other.settimeout(_READY_SECS)
        other.sendall(_ASK)
        if other.recv(1) == _READY:
            return True
    except OSError:
        pass
    other.close()
    return False


def _has_gone(other: socket.socket) -> bool:
    """Tells whether who came has gone."""
    other.settimeout(0)
    try:
        return not other.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        with contextlib.suppress(OSError):
            other.settimeout(1.0)
