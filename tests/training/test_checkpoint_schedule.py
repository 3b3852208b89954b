"""When a run's saves are due."""

import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from embedps.checkpoint.format.manifest import Manifest
from embedps.run.checkpoint_config import CheckpointConfig
from embedps.training.checkpoint_schedule import CheckpointSchedule


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    now = types.SimpleNamespace(secs=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.secs)
    return now


class _Ledger:
    num_done, num_undone = 0, 0

    def steps_done(self) -> int:
        return self.num_done


def _save(**_: Any) -> Manifest:
    raise NotImplementedError


def _schedule(say: Callable[[str], None]) -> tuple[CheckpointSchedule, Any]:
    ledger: Any = _Ledger()
    return CheckpointSchedule(CheckpointConfig(), ledger, _save, say=say), ledger


def test_saves_pause_training_for_a_twentieth_of_the_time_at_most(
    clock: types.SimpleNamespace,
) -> None:
    lines: list[str] = []
    saves, ledger = _schedule(lines.append)
    assert not saves.is_due()
    clock.secs += 15
    assert not saves.is_due()  # no unit was done
    ledger.num_done = 1
    assert saves.is_due()
    saves.paused_for(0.5)  # 9.5 s are less than the interval
    saves.count_from_now()
    ledger.num_done = 2
    clock.secs += 14.9
    assert not saves.is_due()
    clock.secs += 0.1
    assert saves.is_due()
    assert not lines

    for secs in (2.0, 3.0):
        saves.count_from_now()
        ledger.num_done += 1
        saves.paused_for(secs)
        clock.secs += 19 * secs - 0.1
        assert not saves.is_due()
        clock.secs += 0.1
        assert saves.is_due()
    assert lines == [
        "training paused for 2.0 s to be saved: the next checkpoint comes in 38 s, so that pauses "
        "take 5% of the time at most"
    ]
    saves.paused_for(10)
    saves.hurry()  # a notice does not wait
    assert saves.is_due()
