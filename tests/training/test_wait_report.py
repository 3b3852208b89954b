"""Whom the workers wait for is told once, and only if the wait lasts."""

import time

from embedps.scheduling.unit_threads import Wait
from embedps.training.wait_report import WaitReport


def test_wait_is_told_once_after_it_has_lasted(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    report = WaitReport()
    shown = []
    for step in (None, 1, 2, 2, 2, 2, 2, None, 2):
        wait = None if step is None else Wait(f"step {step}", f"at {now}")
        shown += report.news(wait)
        now += 1.5
    assert shown == ["step 2: at 106.0"]
