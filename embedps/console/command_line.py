"""Runs a command line: it parses flags, reports errors as one line and gives the exit code.

All commands of embedps, pipelines and benchmarks use it. It imports neither TensorFlow nor Arrow.
"""

from __future__ import annotations

import argparse
import difflib
import re
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from embedps.config_fields import check_text, check_value, shown
from embedps.console.lines import say, show
from embedps.errors import EmbedpsError, KernelBuildError, UsageError, printable

_LIKENESS = 0.8  # of a flag and what it is taken for
INTERRUPTED_EXIT_CODE = 130  # 128 + SIGINT, as shells have it


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps a description's lines, and each flag whole."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that keeps a text's lines, and whose errors are UsageError."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _Formatter)
        super().__init__(allow_abbrev=False, **kwargs)
        self._given: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reads flags, and keeps them for `error`."""
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        where = re.sub(r"^embedps:? ", "", f"{self.prog}: ")  # `report` says it too
        names = (each.partition("=")[0] for each in self._given if each.startswith("--"))
        known = self._option_string_actions
        wrong = [name for name in names if name not in known and not self._subparsers]
        near = difflib.get_close_matches(wrong[0], known, 1, _LIKENESS) if wrong else []
        if near and "required" in message:
            message = f"unrecognized arguments: {' '.join(wrong)}"  # which is the cause, then
        if near and message.startswith("unrecognized"):
            message += f": did you mean {near[0]}?"
        raise UsageError(f"{where}{message} (--help lists the flags)")


class BriefParser(Parser):
    """A Parser of many flags: --help has only the names of some groups' flags, --help-all has all.

    Attributes:
      brief: the titles of those groups.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.brief: set[str] = set()
        self.add_argument(
            "--help-all", action=_HelpAll, nargs=0, help="show what every flag does and exit"
        )

    def format_help(self) -> str:
        if not self.brief:
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage("%(prog)s [-h] FLAGS", [], [])
        formatter.add_text(self.description)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            if group.title in self.brief:
                names = " ".join(action.option_strings[0] for action in group._group_actions)
                formatter.add_text(textwrap.fill(names, 100, break_on_hyphens=False))
            else:
                formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text("--help-all says what the flags do that are only named here.")
        return formatter.format_help()


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        if isinstance(parser, BriefParser):
            parser.brief = set()
        parser.print_help()
        parser.exit()


def choose(
    commands: Mapping[str, str],
    arguments: Sequence[str],
    prog: str,
    description: str | None,
    *,
    epilog: str = "",
    version: str | None = None,
) -> str:
    """Reads which command the first argument names; the others are left to that command.

    Args:
      commands: a line about each, by name.
      arguments: the command's name, and its own arguments.
      prog: what the user called the program of the commands.
      description: for --help, which lists the commands below it.
      epilog: what --help ends with.
      version: what --version prints, if it is a flag.

    Raises:
      UsageError: there is no such command.
    """
    width = max(map(len, commands)) + 3
    listed = "\n".join(f"  {name:<{width}}{line}" for name, line in commands.items())
    parser = Parser(
        prog=prog,
        usage="%(prog)s COMMAND ...",
        description=f"{description or ''}\n{listed}\n",
        epilog=f"`{prog} COMMAND --help` lists the flags of a command.\n{epilog}",
    )
    if version is not None:
        parser.add_argument("--version", action="version", version=version)
    parser.add_argument("command", choices=commands, metavar="COMMAND", help=argparse.SUPPRESS)
    given = arguments[0] if arguments else ""
    if given and not given.startswith("-") and given not in commands:
        near = difflib.get_close_matches(given, commands, 1)
        advice = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"there is no command {given!r}: {advice}{prog} --help lists them")
    return str(parser.parse_args(arguments[:1]).command)


def number(kind: type, **bounds: float) -> Callable[[str], Any]:
    """Makes an argparse type that reads a number within `config_fields.check_value`'s bounds."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"invalid {kind.__name__} value: {shown(text)}"
            ) from None
        return _checked(lambda: check_value("it", kind, value, bounds))

    return read


def text(given: str) -> str:
    """Reads a name, path or pattern for argparse; an unset shell variable gives an empty one."""
    return str(_checked(lambda: check_text("it", given)))


def path(given: str) -> Path:
    """Reads a local path for argparse; an empty one would be the working directory."""
    return Path(text(given))


def _checked(check: Callable[[], Any]) -> Any:
    try:
        return check()
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(
    main: Callable[[Sequence[str]], int | None],
    arguments: Sequence[str],
    *,
    all_or_nothing: bool = False,
) -> int:
    """Runs a command; an error that a user can mend becomes one line on stderr.

    Args:
      main: the command; None is exit code 0.
      arguments: its flags.
      all_or_nothing: the command finishes its output at its end or not at all. SIGTERM then
        interrupts it like Ctrl-C, so that it removes its temporary files.

    Returns:
      The exit code: the command's, `EmbedpsError.exit_code`, 1 for an OSError, or 130 when
      interrupted.
    """
    with sigterm_interrupts() if all_or_nothing else nullcontext(_never) as was_interrupted:
        try:
            return main(arguments) or 0
        except (EmbedpsError, OSError, KeyboardInterrupt) as error:
            # Beam turns an interrupt in its own code into an ordinary error.
            if not isinstance(error, KeyboardInterrupt) and not was_interrupted():
                return report(error)
    advice = ": nothing was finished, run the command again" if all_or_nothing else ""
    say(f"embedps: interrupted{advice}", file=sys.stderr)
    return INTERRUPTED_EXIT_CODE


def report(error: EmbedpsError | OSError) -> int:
    """Prints an error as one line on stderr; returns the exit code.

    The compiler's output under a KernelBuildError stays as it is.
    """
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    else:
        message = str(error) or type(error).__name__
    if not isinstance(error, KernelBuildError):
        message = printable(re.sub(r"\s*\n\s*", " ", message.strip()))
    show(f"embedps: {message}", file=sys.stderr)
    return error.exit_code if isinstance(error, EmbedpsError) else 1


@contextmanager
def sigterm_interrupts() -> Iterator[Callable[[], bool]]:
    """Raises KeyboardInterrupt at SIGTERM as at Ctrl-C, so that temporary files are removed.

    Outside of the main thread, where Python handles no signals, this does nothing.

    Yields:
      A function that tells whether one of the two signals came.
    """
    came = False
    if threading.current_thread() is not threading.main_thread():
        yield _never
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    before = {s: signal.signal(s, interrupt) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: came
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _never() -> bool:
    return False
