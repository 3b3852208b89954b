"""Makes flags of config dataclasses: each field is a flag, and its default is the flag's."""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from embedps.config_fields import (
    Option,
    check_text,
    choices_of,
    groups_of,
    options_of,
    shown,
    without_none,
)
from embedps.config_fields import make as make_config
from embedps.errors import UsageError

C = TypeVar("C")


def add_flags(parser: argparse.ArgumentParser, config: type, title: str) -> None:
    """Adds a flag for each option of a config dataclass, and a section of --help per group.

    Args:
      parser: gets the flags.
      config: a field's metadata has the flag's `help`, and its `choices` and `metavar` if it has
        any.
      title: of the options that are in no group.
    """
    sections: dict[str | None, Any] = {None: parser.add_argument_group(title)}
    for name, kind in groups_of(config).items():
        summary = (kind.__doc__ or "").partition("\n")[0]
        sections[name] = parser.add_argument_group(name, summary)
    for option in options_of(config):
        kwargs: dict[str, Any] = {"help": _help(option), "default": None}
        choices = choices_of(option.hint, option.field.metadata)
        if option.hint is bool:
            kwargs["action"] = argparse.BooleanOptionalAction
        else:
            kwargs["type"] = _reader(option.hint)
            kwargs["metavar"] = option.field.metadata.get("metavar") or _metavar(option.hint)
        if choices is not None:
            kwargs["choices"] = choices
            del kwargs["metavar"]
        sections[option.group].add_argument(flag_name(option.name), **kwargs)


def flag_name(field: str) -> str:
    """Gives the flag of a field: `batch_size` is --batch-size."""
    return "--" + field.replace("_", "-")


def make(config: type[C], flags: argparse.Namespace, file: Mapping[str, Any]) -> C:
    """Makes a config from its defaults, the file's values over them, and the flags over both.

    Raises:
      UsageError: a value in the file is not of its field's type, a required value is absent, or the
        config's own check fails.
    """
    values: dict[str, Any] = {}
    for option in options_of(config):
        given = getattr(flags, option.name, None)
        if given is not None:
            values[option.name] = given
        elif option.name in file:
            values[option.name] = _convert(option.name, option.hint, file[option.name])
        elif option.default is dataclasses.MISSING:
            raise UsageError(f"{flag_name(option.name)} is required")
    return make_config(config, values)


def read_file(path: str | None, *configs: type) -> dict[str, Any]:
    """Reads the values of a TOML file.

    An option is a key of the file, or a key of the table that has its group's name: `num_ps = 2`,
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
    return _ungroup(path, values, configs) if configs else values


def _ungroup(path: str, values: dict[str, Any], configs: Sequence[type]) -> dict[str, Any]:
    """Gives the values of a file, and of its tables, by the names of the options."""
    options = [option for config in configs for option in options_of(config)]
    names = {option.name: option.name for option in options}
    names |= {f"{o.group}.{o.field.name}": o.name for o in options if o.group is not None}
    groups = {option.group for option in options}
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key in groups and isinstance(value, dict):
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
    if default is dataclasses.MISSING:
        return f"{text} (required)"
    if default is None or default == "":
        return text
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    return f"{text} (default: {default})"


def _reader(hint: Any) -> Callable[[str], Any]:
    bare = without_none(hint)
    if typing.get_origin(bare) is typing.Literal:
        return str
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
    return {int: "N", float: "X", str: "NAME"}.get(bare, "VALUE")


def _convert(name: str, hint: Any, value: Any) -> Any:
    bare = without_none(hint)
    if typing.get_origin(bare) is typing.Literal:
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
    if not isinstance(value, typing.get_origin(bare) or bare) or (
        bare is int and isinstance(value, bool)
    ):
        raise UsageError(
            f"{name} in the config file must be {bare.__name__} but got {shown(value)}"
        )
    return value
