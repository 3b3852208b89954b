"""A stranger's names are shown as they are: they forge no line, and are no markup."""

from __future__ import annotations

import datetime
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from embedps.console import html_page
from embedps.console.command_line import report
from embedps.console.lines import log_as, say, show
from embedps.console.tables import make_table
from embedps.errors import UsageError
from tests import commands

NAME = "a\x1b[2Jb\nembedps: all is well\r\u202e\udcff[red]c"
SHOWN = "a\\x1b[2Jb\\nembedps: all is well\\r\\u202e\\udcff[red]c"


def test_lines_quote_what_moves_the_cursor_or_ends_a_line(capfd: pytest.CaptureFixture) -> None:
    say(NAME)
    say(NAME, file=sys.stderr)
    assert report(OSError(2, "No such file or directory", NAME)) == 1
    out, err = capfd.readouterr()
    assert out == f"{SHOWN}\n"
    one_line = SHOWN.replace("\\n", " ")
    assert err == f"{SHOWN}\nembedps: {one_line}: No such file or directory\n"


def test_in_json_each_line_is_an_object_of_its_time_level_and_event(
    capfd: pytest.CaptureFixture,
) -> None:
    log_as("json")
    try:
        say(NAME)
        say("warning: little memory is left")
        show("two\nlines")
        assert report(UsageError(NAME)) == 2
    finally:
        log_as("text")
    out, err = capfd.readouterr()
    lines = [json.loads(line) for line in (out + err).splitlines()]
    one_line = SHOWN.replace("\\n", " ")
    assert [(line["level"], line["event"]) for line in lines] == [
        ("info", SHOWN),
        ("warning", "little memory is left"),
        ("info", "two\nlines"),
        ("error", f"embedps: {one_line}"),
    ]
    times = [datetime.datetime.fromisoformat(line["time"]) for line in lines]
    assert times == sorted(times)
    assert all(time.tzinfo == datetime.UTC for time in times)


@pytest.mark.parametrize("command", ["evaluate", "serve"])
def test_a_command_that_runs_long_logs_as_it_is_told(command: str, tmp_path: Path) -> None:
    flags = ["--log-format=json", f"--model-dir={tmp_path}"]
    flags += ["--name=a"] if command == "serve" else []
    done = commands.run("-m", "embedps", command, *flags, code=UsageError.exit_code)
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["level"] == "error"


def test_an_error_of_several_lines_is_one(capfd: pytest.CaptureFixture) -> None:
    assert report(UsageError("first:\n  second\x1b[0m")) == 2
    assert capfd.readouterr().err == "embedps: first: second\\x1b[0m\n"


def test_cells_and_titles_are_texts() -> None:
    table = make_table(NAME, "name")
    table.add_row(NAME)
    out = io.StringIO()
    Console(file=out, width=200, force_terminal=True, color_system=None).print(table)
    assert out.getvalue().count(SHOWN) == 2
    assert "\x1b[2J" not in out.getvalue()


def test_a_page_bears_names_of_any_bytes() -> None:
    assert b"a\\udcffb" in html_page.page("a\udcffb", ["c"]).encode()


def test_a_command_that_gets_such_a_name_says_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "embedps", "checkpoint", "inspect", b"/no\xff\n\x1b[2J"],
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.count(b"\n") == 1
    assert b"/no\\udcff" in done.stderr
    assert b"\x1b" not in done.stderr
