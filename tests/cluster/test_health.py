"""The health of servers, as a client sees it that does not always run."""

import time

from embedps.cluster.health import HealthMonitor
from tests.serving.server.builders import until


def test_servers_are_not_silent_for_as_long_as_the_client_was_stopped(monkeypatch):
    slept = 0.0
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + slept)
    monitor = HealthMonitor({}, timeout_secs=2.0)
    try:
        monitor._alive.add(("worker", 0))
        monitor._pending[("worker", 0)] = monitor._ran_secs  # a probe under way
        began = monitor._ran_secs
        slept = 3600.0
        until(lambda: monitor._ran_secs > began + 0.3)
        assert monitor.unresponsive() == set()
        until(lambda: monitor.unresponsive() == {("worker", 0)})
        assert monitor._ran_secs > began + 2.0
    finally:
        monitor.close()
