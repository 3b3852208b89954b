"""A command line's errors become one line and an exit code."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from embedps.console.command_line import (
    INTERRUPTED_EXIT_CODE,
    Parser,
    number,
    path,
    run,
    sigterm_interrupts,
    text,
)
from embedps.errors import DatasetError, EmbedpsError, KernelBuildError, ServerLostError, UsageError


def raising(error: BaseException) -> Callable[[Sequence[str]], None]:
    def main(argv: Sequence[str]) -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("--rows must be\n  positive"), 2, "embedps: --rows must be positive\n"),
        (DatasetError("no rows"), 1, "embedps: no rows\n"),
        (OSError(28, "No space left", "/x/y"), 1, "embedps: /x/y: No space left\n"),
        (OSError("no more sockets"), 1, "embedps: no more sockets\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, "embedps: [Errno 32] Broken pipe\n"),
        (TimeoutError(), 1, "embedps: TimeoutError\n"),
        (ServerLostError("ps 0 is gone"), 75, "embedps: ps 0 is gone\n"),
        (KeyboardInterrupt(), INTERRUPTED_EXIT_CODE, "embedps: interrupted: nothing was finished"),
    ],
)
def test_error_becomes_one_line_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
):
    assert run(raising(error), [], all_or_nothing=True) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1


def test_success_is_code_0_and_restores_the_signal_handlers():
    before = signal.getsignal(signal.SIGTERM)
    assert run(lambda argv: None, [], all_or_nothing=True) == 0
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_made_into_an_error_is_still_an_interrupt(sig: signal.Signals):
    def main(argv: Sequence[str]) -> None:
        try:
            os.kill(os.getpid(), sig)
        except KeyboardInterrupt:
            raise EmbedpsError("the pipeline failed: KeyboardInterrupt") from None

    assert run(main, [], all_or_nothing=True) == INTERRUPTED_EXIT_CODE


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_block_that_cleans_up_is_interrupted_by_sigterm_too(sig: signal.Signals):
    removed: list[str] = []

    def main(argv: Sequence[str]) -> int:
        with sigterm_interrupts():
            try:
                os.kill(os.getpid(), sig)
            finally:
                removed.append("temporary file")
        return 0

    before = signal.getsignal(signal.SIGTERM)
    assert run(main, []) == INTERRUPTED_EXIT_CODE
    assert removed
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_errors_are_bugs_and_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run(raising(ZeroDivisionError()), [], all_or_nothing=True)


def test_command_that_can_resume_says_only_that_it_was_interrupted(
    capsys: pytest.CaptureFixture[str],
):
    before = signal.getsignal(signal.SIGTERM)
    assert run(raising(KeyboardInterrupt()), []) == 130
    assert capsys.readouterr().err == "embedps: interrupted\n"
    assert run(lambda argv: len(argv), ["a", "b"]) == 2
    assert signal.getsignal(signal.SIGTERM) is before


def test_compilers_output_keeps_its_lines(capsys: pytest.CaptureFixture[str]):
    error = KernelBuildError("could not compile a.cc\na.cc:1: error")
    assert run(raising(error), []) == 1
    assert capsys.readouterr().err == "embedps: could not compile a.cc\na.cc:1: error\n"


def test_flag_error_names_the_program_and_the_help(capsys: pytest.CaptureFixture[str]):
    def main(argv: Sequence[str]) -> None:
        Parser(prog="p").parse_args(argv)

    assert run(main, ["--x"]) == 2
    line = "embedps: p: unrecognized arguments: --x (--help lists the flags)\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--modle", "x"],
            "embedps: train: unrecognized arguments: --modle: did you mean --mo",
        ),
        (["--model=x", "--dta=y"], "unrecognized arguments: --dta=y: did you mean --data?"),
        (["--model=x", "--runner=y"], "embedps: train: unrecognized arguments: --runner=y ("),
        (["--runner=y"], "embedps: train: the following arguments are required: --model ("),
    ],
)
def test_a_flag_that_is_misspelled_is_named(
    capsys: pytest.CaptureFixture[str], given: list[str], said: str
):
    parser = Parser(prog="embedps train")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data")

    def main(argv: Sequence[str]) -> None:
        parser.parse_args(argv)

    assert run(main, given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (number(int, least=1), "0", "it must be at least 1 but got 0"),
        (number(int, least=1), "many", "invalid int value: 'many'"),
        (number(float, above=0), "nan", "it must be above 0 but got nan"),
        (text, " ", "it must not be empty but got ' '"),
        (path, "a\0b", "it must not have a NUL character"),
    ],
)
def test_bad_argument_is_named(kind: Callable[[str], object], given: str, message: str):
    parser = Parser(prog="p")
    parser.add_argument("--flag", type=kind)
    with pytest.raises(UsageError) as caught:
        parser.parse_args(["--flag", given])
    assert f"argument --flag: {message}" in str(caught.value)


def test_arguments_are_read():
    assert number(int)("2_000") == 2000
    assert (text("s3://b/x"), path("a/b")) == ("s3://b/x", Path("a/b"))
