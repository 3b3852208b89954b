"""What is quoted of a process's log."""

from pathlib import Path

import pytest

from embedps.logs import last_line

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
        ("@ home\n", "@ home"),
        ("x" * 100_000, "x" * 500),
    ],
)
def test_last_line_says_something(tmp_path: Path, text: str, last: str) -> None:
    (tmp_path / "log").write_text(text)
    assert last_line(tmp_path / "log") == last


def test_log_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert last_line(tmp_path / "log") == "its log cannot be read (No such file or directory)"
