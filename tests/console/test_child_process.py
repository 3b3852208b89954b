"""What is said of a process that ended, and quoted of its log."""

from pathlib import Path

import pytest

from embedps.console.child_process import how_it_ended, last_line

STACK = """F0000 00:00:1.2   99 abort_op.cc:45] it failed
*** Check failure stack trace: ***
    @     0x7f047f4a71f5  (unknown)
    @           0x5134ff  tensorflow::Abort::Compute()
"""


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("", "it said nothing"),
        (" \n\n", "it said nothing"),
        ("first\nembedps: second\n \n", "second"),
        ("no end of line", "no end of line"),
        (STACK, "F0000 00:00:1.2   99 abort_op.cc:45] it failed"),
        (
            STACK + "embedps: worker 0 has a client\n",
            "F0000 00:00:1.2   99 abort_op.cc:45] it failed",
        ),
        ("@ home\n", "@ home"),
        ("x" * 100_000, "x" * 500),
    ],
)
def test_last_line_says_something(tmp_path: Path, text: str, last: str) -> None:
    (tmp_path / "log").write_text(text)
    assert last_line(tmp_path / "log") == last


def test_log_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert last_line(tmp_path / "log") == "its log cannot be read (No such file or directory)"


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, "with code 0"), (75, "with code 75"), (-9, "by SIGKILL"), (-40, "by signal 40")],
)
def test_end_of_a_process_is_said(code: int, said: str) -> None:
    assert how_it_ended(code) == said
