"""Errors of a command line become one line and an exit code; progress is plain off a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from embedps.errors import DatasetError, EmbedpsError, UsageError
from pipelines import describe, generate, ingest
from pipelines.cli import INTERRUPTED_EXIT_CODE, reporter, run


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("--rows must be\n  positive"), 2, "error: --rows must be positive\n"),
        (DatasetError("no rows"), 1, "error: no rows\n"),
        (OSError(28, "No space left", "/x/y"), 1, "error: /x/y: No space left\n"),
        (KeyboardInterrupt(), INTERRUPTED_EXIT_CODE, "interrupted: nothing was finished"),
    ],
)
def test_error_becomes_one_line_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
):
    def main(argv: Sequence[str]) -> None:
        raise error

    assert run(main, []) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("command", ["criteo", "ingest", "generate", "describe"])
def test_help_imports_neither_tensorflow_nor_beam(command: str):
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['pipelines.{command}', '--help']\n"
        f"try: runpy.run_module('pipelines.{command}', run_name='__main__')\n"
        "finally: print([m for m in ('tensorflow', 'apache_beam') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: python -m pipelines.{command}")
    assert result.stdout.endswith("\n[]\n")


_INGEST = {"--input": "a.tsv", "--output": "out", "--schema": "criteo"}


@pytest.mark.parametrize(
    ("main", "flags", "name"),
    [
        *(
            (ingest.main, _INGEST | {flag: text}, flag)
            for flag in (*_INGEST, "--eval-input", "--eval-from", "--split-key")
            for text in ("", "a\0b")
        ),
        (generate.main, {"--rows": "1", "--output": ""}, "--output"),
        (describe.main, {"": ""}, "DIR"),
        (describe.main, {"--html": "", ".": "."}, "--html"),
    ],
)
def test_empty_path_or_nul_is_one_usage_error(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    main: Callable[[Sequence[str]], None],
    flags: dict[str, str],
    name: str,
):
    monkeypatch.chdir(tmp_path)
    argv = [text for flag, value in flags.items() for text in dict.fromkeys((flag, value))]
    with pytest.raises(UsageError, match=f"argument {name}: it must not (be empty|have a NUL)"):
        main(argv)
    assert not os.listdir(tmp_path)


def test_success_is_code_0_and_restores_the_signal_handlers():
    before = signal.getsignal(signal.SIGTERM)
    assert run(lambda argv: None, []) == 0
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_made_into_an_error_is_still_an_interrupt(sig: signal.Signals):
    def main(argv: Sequence[str]) -> None:
        try:
            os.kill(os.getpid(), sig)
        except KeyboardInterrupt:
            raise EmbedpsError("the pipeline failed: KeyboardInterrupt") from None

    assert run(main, []) == INTERRUPTED_EXIT_CODE


def test_other_errors_are_bugs_and_keep_their_traceback():
    def main(argv: Sequence[str]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main, [])


def test_progress_off_a_terminal_is_plain_lines_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    clock = [100.0]
    monkeypatch.setattr("pipelines.cli.time.monotonic", lambda: clock[0])
    with reporter("reading", 1000, "rows") as progress:
        for done in range(0, 1001, 100):
            progress.update(done)
            clock[0] += 1.0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "reading: 500 of 1,000 rows, 100 rows/s",
        "reading: 1,000 of 1,000 rows, 100 rows/s",
    ]
