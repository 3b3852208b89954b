"""Progress of a long run, off a terminal."""

from __future__ import annotations

import re

import pytest

from embedps.console.progress import ProgressLine


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("embedps.console.progress.time.monotonic", lambda: now[0])
    return now


def test_progress_off_a_terminal_is_plain_lines_now_and_then(
    capsys: pytest.CaptureFixture[str], clock: list[float]
):
    with ProgressLine("reading", 1000, unit="rows") as progress:
        for done in range(0, 1001, 100):
            progress.update(done)
            clock[0] += 1.0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "reading: 500 of 1,000 rows, 100 rows/s",
        "reading: 1,000 of 1,000 rows, 100 rows/s",
    ]


def test_units_are_shown_at_once_and_with_their_share(capsys: pytest.CaptureFixture[str]):
    with ProgressLine("units", 8, log_secs=1000, completed=2) as line:
        assert line.due()
        line.update(3, "loss 0.5")
        assert not line.due()
        line.update(4, "loss 0.4")
        line.update(8, "loss 0.3", force=True)
        line.say("done")
    assert capsys.readouterr().out.splitlines() == [
        "units 3/8 (38%) loss 0.5",
        "units 8/8 (100%) loss 0.3",
        "done",
    ]


def test_no_rate_is_told_before_a_second(capsys: pytest.CaptureFixture[str], clock: list[float]):
    with ProgressLine("reading", 1000, unit="rows", completed=400) as progress:
        clock[0] += 0.0002
        progress.update(600, force=True)
        clock[0] += 1.9998
        progress.update(1000, force=True)
    assert capsys.readouterr().out.splitlines() == [
        "reading: 600 of 1,000 rows",
        "reading: 1,000 of 1,000 rows, 300 rows/s",  # of the 600 that it did
    ]


@pytest.mark.parametrize("term", ["", "xterm"], ids=["plain", "terminal"])
def test_a_line_shows_names_of_any_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    if term:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", term)
        monkeypatch.setenv("COLUMNS", "200")
    with ProgressLine("units", 8) as line:
        line.say("[/b] [red]x\n\x1b[2J\udcff é.parquet")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    assert "[/b] [red]x\\n\\x1b[2J\\udcff é.parquet" in shown
