"""Runs a benchmark that is declared: a config, a measurement, and the layout of its result.

A program is a module of this package. All that it does not say is here: flags, `--config`,
`--output`, --help, the result's file and what stands around it, the terminal and the page.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(Options):
        rows: int = option(1000, "of the table", least=1)

    def measure(config: Config, run: Run) -> Content:
        return {"results": {"secs": time_rows(config.rows)}}

    def layout(content: Content) -> list[Part]:
        return [figures("rows", [["seconds", f"{content['results']['secs']:.1f}"]])]

    BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)

    if __name__ == "__main__":
        main(BENCHMARK)
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import importlib.util
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from benchmarks import layout, report
from embedps.config_fields import Option, check, options_of
from embedps.console import command_line, flags
from embedps.errors import EmbedpsError, UsageError

Content = dict[str, Any]
"""A result, or a part of one, as JSON has it."""

DIR, FILE = "DIR", "FILE"
"""The metavar of an option that is a path; a result does not tell whose folder it was."""


class LimitError(EmbedpsError):
    """What was measured is not within the benchmark's own limit."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The base of a benchmark's config: it checks itself.

    An option of several texts may have `some_of`, which lists all that there are.
    """

    def __post_init__(self) -> None:
        """Checks each option.

        Raises:
          UsageError: one is not of its type, out of its bounds, or not of `some_of`.
        """
        check(self)
        for each in dataclasses.fields(self):
            allowed = each.metadata.get("some_of")
            if allowed is None:
                continue
            if unknown := [value for value in getattr(self, each.name) if value not in allowed]:
                flag, names = flags.flag_name(each.name), ", ".join(allowed)
                raise UsageError(f"{flag} must be of {names} but has {unknown[0]}")


C = TypeVar("C", bound=Options)


class Run:
    """The file of the result, while it is measured."""

    def __init__(self, path: Path, head: Content) -> None:
        self.path = path
        self._head = head
        self.environment: Content = head["environment"]

    def earlier(self) -> Content:
        """Reads the result that is there, for a benchmark that adds to it; {} without one."""
        found: Content = json.loads(self.path.read_text()) if self.path.exists() else {}
        return found

    def save(self, content: Content) -> Content:
        """Writes what was measured so far; returns it with all that stands around it.

        A "config" in it adds to the options, and a "command" replaces that of this run.
        """
        config = {**self._head["config"], **content.get("config", {})}
        made = {**self._head, **content, "config": config}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(made, indent=1) + "\n")
        partial.replace(self.path)  # an interruption leaves the result of before
        return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark(Generic[C]):
    """What a program declares.

    Attributes:
      config: a dataclass of options, of the program's module.
      measure: measures, and returns what the result has beside its head. `Run.save` keeps parts.
      layout: lays a result out.
      failure: tells from a result which limit does not hold; None if all do.
      plot: draws a result into a file.
      runs_as: what stands behind `python -m`, where that is not benchmarks.NAME.
      name: of its result; by default that of its module.
      about: what --help says above the flags; by default the module's docstring.
    """

    config: type[C]
    measure: Callable[[C, Run], Content]
    layout: Callable[[Content], Sequence[layout.Part]]
    failure: Callable[[Content], str | None] = lambda content: None
    plot: Callable[[Content, Path], None] | None = None
    runs_as: str = ""
    name: str = ""
    about: str | None = None

    def __post_init__(self) -> None:
        module = sys.modules[self.config.__module__]
        object.__setattr__(self, "name", self.name or Path(str(module.__file__)).stem)
        object.__setattr__(self, "about", self.about or module.__doc__)

    def run(self, arguments: Sequence[str]) -> int:
        """Runs the command line.

        Raises:
          LimitError: a limit of the benchmark does not hold; the result is written.
        """
        prog = f"python -m {self.program}"
        parser = command_line.Parser(prog=prog, description=self.about)
        add_flags(parser, self.config)
        result = report.RESULTS / f"{self.name}.json"
        parser.add_argument(
            "--output",
            type=_output_file,
            default=result,
            metavar=FILE,
            help=f"of the result (default: benchmarks/results/{result.name})",
        )
        options = parser.parse_args(arguments)
        self.make(make_config(self.config, options), options.output)
        return 0

    def make(self, config: C, path: Path) -> Content:
        """Measures; writes, prints and draws the result.

        Raises:
          LimitError: a limit of the benchmark does not hold; the result is written.
        """
        given = [option for option in options_of(self.config) if not _is_path(option)]
        head = {
            "benchmark": self.name,
            "command": self.command(config),
            "environment": report.environment(),
            "config": {option.name: getattr(config, option.name) for option in given},
        }
        run = Run(path, head)
        content = run.save(self.measure(config, run))
        layout.show(self.layout(content))
        print(f"wrote {path}")
        if self.plot is not None:
            self.plot(content, path.with_suffix(".png"))
            print(f"wrote {path.with_suffix('.png')}")
        if wrong := self.failure(content):
            raise LimitError(wrong)
        return content

    def command(self, config: C) -> str:
        """Gives the command line of a config: the options that are not at their default."""
        given = []
        for option in options_of(self.config):
            value, flag = getattr(config, option.name), flags.flag_name(option.name)
            if value == option.default:
                continue
            if isinstance(value, bool):
                given.append(flag if value else f"--no-{flag[2:]}")
            elif _is_path(option):
                given += [flag, option.field.metadata["metavar"]]
            else:
                text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                given += [flag, text]
        return shlex.join(["python", "-m", *self.program.split(), *given])

    @property
    def program(self) -> str:
        """What stands behind `python -m`."""
        return self.runs_as or f"benchmarks.{self.name}"


def add_flags(parser: argparse.ArgumentParser, config: type[Options]) -> None:
    """Adds a flag per option of a config, and --config."""
    flags.add_flags(parser, config, "what is measured")
    parser.add_argument("--config", metavar=FILE, help="a TOML file with values of these flags")


def make_config(config: type[C], given: argparse.Namespace) -> C:
    """Makes a config of the flags that `add_flags` added, and of the file that they name."""
    return flags.make(config, given, flags.read_file(given.config, config))


def _is_path(option: Option) -> bool:
    return option.field.metadata.get("metavar") in (DIR, FILE)


def main(benchmark: Benchmark[Any]) -> NoReturn:
    """Runs a benchmark as a program."""
    sys.exit(command_line.run(benchmark.run, sys.argv[1:]))


def unfinished(content: Content) -> str | None:
    """Says that the same command goes on, where `is_whole` is false; for `Benchmark.failure`."""
    return None if content["is_whole"] else "something is left to measure: run the command again"


@functools.cache
def load(name: str) -> Benchmark[Any]:
    """Imports a benchmark by its name; a package declares its own in `__main__`."""
    spec = importlib.util.find_spec(f"benchmarks.{name}")
    if spec is None:
        raise UsageError(f"benchmarks has no program {name!r}")
    is_package = spec.submodule_search_locations is not None
    module = importlib.import_module(f"{spec.name}.__main__" if is_package else spec.name)
    benchmark: Benchmark[Any] = module.BENCHMARK
    return benchmark


def _output_file(text: str) -> Path:
    path = Path(text)  # a wrong one is refused before hours of measurement
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file, such as {path / 'result.json'}")
    return path
