"""Writes what the reference takes from the code: `python -m tools.reference_pages`.

docs/reference/flags.md is made of the commands' argparse parsers, as `--help` gets them. The list
of names in docs/reference/api.md is made of the first lines of the docstrings of the names that the
page's directives have. docs/reference/metrics.md lists the metrics as they are declared, and the
alerts of deploy/alerts.yaml. tests/test_reference.py keeps all equal to the code.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import yaml

import embedps

DOCS = Path(__file__).resolve().parent.parent / "docs"
FLAGS, API, METRICS = (DOCS / "reference" / f"{name}.md" for name in ("flags", "api", "metrics"))
ALERTS = DOCS.parent / "deploy" / "alerts.yaml"
BEGIN, END = "<!-- by tools/reference_pages.py -->", "<!-- end -->"
_HEAD = """\
# Flags

`python -m tools.reference_pages` writes this page from the commands' parsers. Flags that `plan`
shares with `train` are listed once. `--help` says more (`--help-all` of `train` and `plan`). A flag
of a run may stand in a [configuration file](commands.md#configuration-files), and is a field of
`embedps.TrainConfig`. A flag whose default is True or False has a `--no-` form. Subcommands of
`embedps checkpoint` and `embedps table` take the model directory first.
"""
_OF_ALL = ("help", "help_all", "config")
_COMMANDS = (
    "embedps.train",
    "embedps.plan",
    "embedps.tune",
    "embedps.scale",
    "embedps.evaluate",
    "embedps.compare",
    "embedps.calibrate",
    "embedps.report",
    "embedps.predict",
    "embedps.export",
    "embedps.serve",
    "embedps.server",
    "embedps.table",
    "embedps.checkpoint.__main__",
    "embedps.pipelines.generate",
    "embedps.pipelines.ingest",
    "embedps.pipelines.interactions",
    "embedps.pipelines.describe",
    "embedps.pipelines.infer",
)


class _HelpAskedError(Exception):
    """A parser was asked for help."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def parser_of(module: str, *arguments: str) -> argparse.ArgumentParser:
    """Gives the parser that answers `--help` after these arguments of a command."""

    def ask(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise _HelpAskedError(parser)

    with mock.patch.object(argparse.ArgumentParser, "print_help", ask):
        try:
            importlib.import_module(module).main([*arguments, "--help"])
        except _HelpAskedError as asked:
            return asked.parser
    raise AssertionError(f"{module} must print help when it is asked for --help")


def flags_page() -> str:
    """Makes the page of flags."""
    lines = [_HEAD]
    parser = parser_of("embedps.train")
    shown = {line for _, found in _sections(parser) for line in found}
    for module in _COMMANDS:
        name = module.removesuffix(".__main__")
        command = name.replace(".", " ") if name.count(".") == 1 else f"python -m {name}"
        lines.append(f"\n## {command}")
        parser = parser_of(module)
        for inner in _inner(parser):
            of_it = {line for _, each in _sections(parser_of(module, inner)) for line in each}
            lines += _table(f"{command.split()[-1]} {inner}", sorted(of_it))
        if not _inner(parser):
            known = shown if module == "embedps.plan" else set[str]()
            for title, found in _sections(parser):
                lines += _table(title, [line for line in found if line not in known])
        if module == "embedps.train":
            lines += _models(shown)
    return "\n".join(lines) + "\n"


def _models(shown: set[str]) -> Iterator[str]:
    """Lists the flags of the models that DLRM has not, each with its models."""
    models: dict[str, list[str]] = {}
    package = importlib.import_module("embedps.models")
    for name in sorted(each.name for each in pkgutil.iter_modules(package.__path__)):
        module = importlib.import_module(f"embedps.models.{name}")
        if hasattr(module, "Config"):
            for _, found in _sections(parser_of("embedps.train", "--model", name)):
                for line in found:
                    models.setdefault(line, []).append(name)
    yield "\n### other models\n\nflag|default|does|models\n---|---|---|---"
    yield from (f"{line}|{', '.join(of)}" for line, of in models.items() if line not in shown)


def _table(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"\n### {title}" if title else ""
        yield "\nflag|default|does\n---|---|---" if title else "flag|default|does\n---|---|---"
        yield from lines


def _inner(parser: argparse.ArgumentParser) -> list[str]:
    """Lists a parser's subcommands."""
    choices = (a.choices for a in parser._actions if not a.option_strings and a.dest == "command")
    return [str(name) for each in choices for name in each or ()]


def _sections(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Gives the titles of a parser's sections with the lines of their flags."""
    for group in parser._action_groups:
        actions = (a for a in group._group_actions if a.option_strings and a.dest not in _OF_ALL)
        lines = [_line(parser, a) for a in actions if a.help is not argparse.SUPPRESS]
        yield ("" if group.title == "options" else group.title or ""), lines


def _line(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Makes a line of a table: the flag, its default, and what it does."""
    value = ""
    if action.choices is not None:
        value = " " + "{" + ",".join(map(str, action.choices)) + "}"
    elif action.nargs != 0:
        value = f" {action.metavar or action.dest.upper()}"
    text = re.sub(r"\s+", " ", (action.help or "") % {**vars(action), "prog": parser.prog})
    found = re.fullmatch(r"(.*?)[\s;(]*\b(?:default: (.*?)|(required))\)?( \(default: \))?", text)
    if found:
        text, default = found[1], found[2] or found[3] or ""
    else:
        default = "required" if action.required else ""
    escaped = _brief(text).replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")
    return f"`{action.option_strings[0]}{value}`|{default}|{escaped}"


def _brief(text: str) -> str:
    """Gives the first clause of a flag's help, unless it is short or explains one choice."""
    found = re.match(r"(?![\w-]+: )(?:\S+ ){2}(?:[^;:]|:(?! ))*?(?=; |\. |(?<=\w): )", text)
    return found[0] if found and len(found[0].split()) > 5 else text


def api_page(page: str) -> str:
    """Puts the list of names into the page of the API, above its directives."""
    lines = []
    for heading, name in re.findall(r"^(?:### (.+)|::: (.+))$", page[page.index(END) :], re.M):
        if heading:
            lines.append(f"\n**{heading}**\n")
        else:
            lines.append(f"- `{name}`: {_summary(name)}")
            lines += _errors() if name == "embedps.errors" else ()
    return _filled(page, lines)


def _filled(page: str, lines: Sequence[str]) -> str:
    """Puts lines into a page, in the place of those that were made before."""
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:begin] + "\n" + "\n".join(lines) + "\n\n" + page[end:]


def declared_metrics() -> dict[str, dict[str, str]]:
    """Gives by program the metrics that it has, by name: what each is, and of what."""
    from embedps.cluster import task_metrics
    from embedps.run import metrics_port
    from embedps.serving.server.metrics import ServerMetrics
    from embedps.training import run_metrics

    programs = {
        "embedps train": run_metrics.METRICS,
        "embedps server": task_metrics.METRICS,
        "embedps train and server": metrics_port.OF_ALL,
    }
    listed = {
        program: {
            m.name: m.text[:-1] + (f", by {' and '.join(m.labels)}." if m.labels else ".")
            for m in found
        }
        for program, found in programs.items()
    }
    serve = ServerMetrics(list).text()
    return listed | {"embedps serve": dict(re.findall(r"(?m)^# HELP (\w+) (.+)$", serve))}


def metrics_page(page: str) -> str:
    """Puts the metrics and the alerts into their page."""
    lines = []
    for program, metrics in declared_metrics().items():
        lines += [f"\n## {program}\n", "metric|is", "---|---"]
        lines += [f"`{name}`|{text}" for name, text in metrics.items()]
    lines += ["", "## Alerts"]
    for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]:
        said = rule["annotations"]
        lines += [f"\n### {rule['alert']}\n", f"`{rule['expr']}`", ""]
        lines += [f"**It means:** {said['means']} **What to do:** {said['do']}"]
    return _filled(page, lines)


def _summary(name: str) -> str:
    """Gives the first line of what a name's docstring says."""
    text = inspect.getdoc(_object(name))
    if not text:
        raise ValueError(f"{name} must have a docstring")
    return text.partition("\n")[0]


def _object(name: str) -> Any:
    with suppress(ImportError):
        return importlib.import_module(name)
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _errors() -> Iterator[str]:
    for name, kind in vars(embedps.errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            code = getattr(kind, "exit_code", 1)
            yield f"    - `{name}` (exit code {code}): {_summary(f'embedps.errors.{name}')}"


if __name__ == "__main__":
    FLAGS.write_text(flags_page(), encoding="utf-8")
    METRICS.write_text(metrics_page(METRICS.read_text(encoding="utf-8")), encoding="utf-8")
    API.write_text(api_page(API.read_text(encoding="utf-8")), encoding="utf-8")
