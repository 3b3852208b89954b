"""Which losses of servers a client goes on beside, and which have it begin anew."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from embedps.cluster import server_replacement
from embedps.cluster.interface import LostServer
from embedps.cluster.server_replacement import ServerReplacement
from embedps.errors import ServerLostError


class Servers:
    """Two of them, which greet whoever connects; `refresh` does what a test says."""

    def __init__(self) -> None:
        self.running = [True, True]
        self.told = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._greet, daemon=True).start()
        address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.replacement = ServerReplacement(
            [address, address],
            runs=lambda index: self.running[index],
            refresh=self._refresh,
            serve_secs=30,
        )

    def _greet(self) -> None:
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError:
                return
            link.sendall(b"x")

    def _refresh(self, secs: float) -> None:
        self.told += 1

    def close(self) -> None:
        self._listening.close()

    def lose(self, index: int) -> LostServer:
        assert self.replacement.take(index, f"parameter server {index} ended")
        lost = self.replacement.lost(0)
        assert lost is not None
        return lost


def await_server(
    servers: Servers,
    lost: LostServer,
    *,
    is_idle: Callable[[], bool],
    end: Callable[[], None] = lambda: pytest.fail("a call was ended"),
    secs: float = 30.0,
) -> None:
    servers.replacement.await_server(lost, is_idle=is_idle, end_calls=end, settle_secs=secs)


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    made.replacement.allow(True)
    yield made
    made.close()


def test_a_server_that_serves_again_is_told_to_tensorflow(servers: Servers) -> None:
    servers.running[1] = False
    assert servers.replacement.is_due  # before anyone told of it
    servers.running[1] = True
    lost = servers.lose(1)
    assert (lost.number, lost.why) == (1, "parameter server 1 ended")
    await_server(servers, lost, is_idle=lambda: True)
    assert servers.told == 1
    assert servers.replacement.is_due  # until workers reach it
    servers.replacement.await_workers(lost, set())
    assert not servers.replacement.is_due
    servers.lose(0)  # another one, later


@pytest.mark.parametrize("second", [0, 1])
def test_two_servers_at_once_or_one_twice_have_the_client_begin_anew(
    servers: Servers, second: int
) -> None:
    lost = servers.lose(1)
    assert not servers.replacement.take(second, "during the recovery of the first")
    with pytest.raises(ServerLostError, match="a server was lost once more meanwhile"):
        await_server(servers, lost, is_idle=lambda: True)
    assert servers.told == 0
    with pytest.raises(ServerLostError, match="a server was lost once more meanwhile"):
        servers.replacement.await_workers(lost, set())


def test_calls_that_do_not_end_by_themselves_are_ended_once(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_replacement, "_CALL_SECS", 0.0)
    lost = servers.lose(1)
    ended: list[bool] = []
    await_server(servers, lost, is_idle=lambda: bool(ended), end=lambda: ended.append(True))
    assert (ended, servers.told) == ([True], 1)


def test_calls_that_do_not_end_have_the_client_begin_anew(servers: Servers) -> None:
    lost = servers.lose(1)
    with pytest.raises(ServerLostError, match="a worker did not end its call within 0 s"):
        await_server(servers, lost, is_idle=lambda: False, secs=0.0)


def test_a_loss_that_several_find_is_one(servers: Servers) -> None:
    assert servers.replacement.find(1, "cannot be reached")
    assert servers.replacement.find(1, "cannot be reached")
    assert servers.replacement.lost(0) is not None
    assert not servers.replacement.find(0, "cannot be reached")
    assert servers.replacement.lost(0) is None


def test_nothing_is_replaced_unless_it_is_allowed(servers: Servers) -> None:
    lost = servers.lose(1)
    assert servers.replacement.allow(False) is lost
    assert not servers.replacement.take(0, "ended")
    assert not servers.replacement.is_due
