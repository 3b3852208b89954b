"""Makes flags of config dataclasses: each field is a flag, and its default is the flag's.

`read` is all that a command needs to have its config from flags and from the file of --config.
"""

from __future__ import annotations

import argparse
import tomllib
import typing
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from embedps.config_fields import (
    NUMBER_OR_NAME,
    Option,
    check_text,
    choices_of,
    options_of,
    sections_of,
    shown,
    without_none,
)
from embedps.config_fields import make as make_config
from embedps.console.command_line import Parser
from embedps.errors import UsageError

C = TypeVar("C")


def read(
    config: type[C],
    arguments: Sequence[str],
    prog: str,
    description: str | None,
    *,
    epilog: str | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> C:
    """Reads the config of a command from its arguments and from the file that --config names.

    Args:
      config: each of its options is a flag.
      prog: what the user called it.
      description: for --help.
      epilog: what --help ends with.
      fixed: values of options that are no flags of this command.

    Raises:
      UsageError: an argument or a key of the file is unknown, a required one is absent, or a value
        is not allowed.
    """
    fixed = fixed or {}
    parser = Parser(prog=prog, description=description, epilog=epilog)
    add_file_flag(parser)
    add_flags(parser, config, without=fixed)
    options = options_of(config)
    rest = [option.name for option in options if option.field.metadata.get("rest")]
    if rest:
        given, left = parser.parse_known_args(arguments)
        setattr(given, rest[0], left or None)
    elif any(option.field.metadata.get("positional") for option in options):
        given = parser.parse_intermixed_args(arguments)
    else:
        given = parser.parse_args(arguments)
    values = read_file(given.config, config)
    if refused := sorted(set(values) & set(fixed)):
        raise UsageError(f"--config {given.config} has {refused}, which this command does not take")
    values |= fixed
    if absent := _absent(config, given, values):
        parser.error(f"{absent} is required")
    return make(config, given, values)


def read_known(config: type[C], arguments: Sequence[str], prog: str) -> C:
    """Reads a config of some of a command's options, before or instead of all of them.

    Raises:
      UsageError: the file cannot be read, or a value is not allowed.
    """
    parser = Parser(prog=prog, add_help=False)
    parser.add_argument("--config")
    add_flags(parser, config)
    given, _ = parser.parse_known_args(arguments)
    values = read_file(given.config)
    for name in sections_of(config):
        table = values.pop(name, {})
        values |= table if isinstance(table, dict) else {}
    return make(config, given, values)


def add_file_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --config, the file of a command's options."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file with any of the values below, by flag name with underscores, or in a table "
        "per section, such as [cluster] of train; a flag overrides the file",
    )


def add_flags(
    parser: argparse.ArgumentParser,
    config: type,
    title: str | None = None,
    *,
    without: Container[str] = (),
) -> None:
    """Adds a flag for each option of a config dataclass, in its sections.

    Args:
      config: a field's metadata has the flag's `help`, and its `choices` and `metavar` if it has
        any: see `config_fields.option`.
      title: of the options that are in no section.
      without: names of options that get no flag.
    """
    sections: dict[str | None, Any] = {None: parser.add_argument_group(title) if title else parser}
    for name, kind in sections_of(config).items():
        if all(option.name in without for option in options_of(config) if option.section == name):
            continue
        summary = (kind.__doc__ or "").partition("\n")[0]
        sections[name] = parser.add_argument_group(name, summary)
    # --help begins with what must be given.
    for option in sorted(options_of(config), key=lambda o: not o.is_required):
        metadata = option.field.metadata
        if option.name in without or metadata.get("rest"):
            continue
        kwargs: dict[str, Any] = {"help": _help(option), "default": None}
        choices = choices_of(option.hint, metadata)
        if option.hint is bool:
            kwargs["action"] = argparse.BooleanOptionalAction
        else:
            kwargs["type"] = str if metadata.get("several") else _reader(option.hint)
            kwargs["metavar"] = metadata.get("metavar") or _metavar(option.hint)
        if choices is not None:
            kwargs["choices"] = choices
            del kwargs["metavar"]
        if metadata.get("several"):
            kwargs |= {"action": "extend", "nargs": "+"}
        if metadata.get("positional"):
            sections[option.section].add_argument(option.name, nargs="?", **kwargs)
        else:
            sections[option.section].add_argument(flag_name(option.name), **kwargs)


def flag_name(field: str) -> str:
    """Gives the flag of a field: `batch_size` is --batch-size."""
    return "--" + field.replace("_", "-")


def make(config: type[C], flags: argparse.Namespace, file: Mapping[str, Any]) -> C:
    """Makes a config from its defaults, the file's values over them, and the flags over both.

    Raises:
      UsageError: a value in the file is not of its field's type, a required value is absent, or the
        config's own check fails.
    """
    if absent := _absent(config, flags, file):
        raise UsageError(f"{absent} is required")
    values: dict[str, Any] = {}
    for option in options_of(config):
        given = getattr(flags, option.name, None)
        if given is not None:
            values[option.name] = tuple(given) if isinstance(given, list) else given
        elif option.name in file:
            values[option.name] = _convert(option.name, option.hint, file[option.name])
    return make_config(config, values)


def _absent(config: type, flags: argparse.Namespace, file: Mapping[str, Any]) -> str | None:
    """Names the first option that must be given and is not, as the user gives it."""
    for option in options_of(config):
        given = getattr(flags, option.name, None) is not None or option.name in file
        if option.is_required and not given:
            metadata = option.field.metadata
            return metadata["metavar"] if metadata.get("positional") else flag_name(option.name)
    return None


def read_file(path: str | None, *configs: type) -> dict[str, Any]:
    """Reads the values of a TOML file.

    An option is a key of the file, or a key of the table that has its section's name: `num_ps = 2`,
    or `[cluster]` with `num_ps = 2`.

    Args:
      path: of the file; None gives no values.
      configs: whose options the keys must be; without any, every key is taken, and a table stays a
        table.

    Returns:
      The values by the options' names.

    Raises:
      UsageError: the file cannot be read, is not TOML, has an unknown key, or has an option twice.
    """
    if path is None:
        return {}
    try:
        values = tomllib.loads(Path(check_text("--config", path)).read_text())
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not TOML, or not UTF-8
        raise UsageError(f"--config {path} must be a readable TOML file: {error}") from error
    return _flatten(path, values, configs) if configs else values


def _flatten(path: str, values: dict[str, Any], configs: Sequence[type]) -> dict[str, Any]:
    """Gives the values of a file, and of its tables, by the names of the options."""
    options = [option for config in configs for option in options_of(config)]
    names = {option.name: option.name for option in options}
    names |= {f"{o.section}.{o.field.name}": o.name for o in options if o.section is not None}
    sections = {option.section for option in options}
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key in sections and isinstance(value, dict):
            given |= {f"{key}.{inner}": each for inner, each in value.items()}
        else:
            given[key] = value
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise UsageError(f"--config {path} has keys {unknown}; it may have {sorted(names)}")
    found: dict[str, Any] = {}
    for key, value in given.items():
        if names[key] in found:
            raise UsageError(f"--config {path} has {names[key]} twice, once in a table: remove one")
        found[names[key]] = value
    return found


def _help(option: Option) -> str:
    text = str(option.field.metadata.get("help", "")).replace("%", "%%")
    default = option.default
    if option.is_required:
        return f"{text} (required)"
    if default in (None, "", ()):
        return text
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    return f"{text} (default: {default})"


def _reader(hint: Any) -> Callable[[str], Any]:
    bare = without_none(hint)
    if typing.get_origin(bare) is typing.Literal or bare in (Path, NUMBER_OR_NAME):
        return str  # the config makes a Path or a number of it, but not of an empty text
    if typing.get_origin(bare) is tuple:
        item = typing.get_args(bare)[0]

        def integers(text: str) -> tuple[Any, ...]:
            return tuple(item(part) for part in text.split(",") if part)

        return integers
    return bare  # type: ignore[no-any-return]


def _metavar(hint: Any) -> str:
    bare = without_none(hint)
    if typing.get_origin(bare) is tuple:
        return ",".join([_metavar(typing.get_args(bare)[0])] * 2) + ",…"
    return {int: "N", float: "X", str: "NAME", Path: "FILE"}.get(bare, "VALUE")


def _convert(name: str, hint: Any, value: Any) -> Any:
    bare = without_none(hint)
    if typing.get_origin(bare) is typing.Literal or bare is Path:
        bare = str
    if typing.get_origin(bare) is tuple and isinstance(value, list):
        return tuple(_convert(name, typing.get_args(bare)[0], item) for item in value)
    if bare is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UsageError(
                f"{name} in the config file must be a float's number but got {shown(value)}"
            ) from None
    kinds = bare if bare == NUMBER_OR_NAME else typing.get_origin(bare) or bare
    if not isinstance(value, kinds) or (bare is not bool and isinstance(value, bool)):
        wanted = getattr(bare, "__name__", "int or str")
        raise UsageError(f"{name} in the config file must be {wanted} but got {shown(value)}")
    return value
