"""Makes flags of config dataclasses: each field is a flag, and its default is the flag's."""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from embedps.config_fields import check_text, shown, without_none
from embedps.errors import UsageError

C = TypeVar("C")


def add_flags(parser: argparse.ArgumentParser, config: type, title: str) -> None:
    """Adds a flag for each field of a config dataclass.

    The field's metadata has the flag's `help`, and its `choices` and `metavar` if it has any.
    """
    group = parser.add_argument_group(title)
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        default = _default(field)
        kwargs: dict[str, Any] = {"help": _help(field, default), "default": None}
        if hints[field.name] is bool:
            kwargs["action"] = argparse.BooleanOptionalAction
        else:
            kwargs["type"] = _reader(hints[field.name])
            kwargs["metavar"] = field.metadata.get("metavar") or _metavar(hints[field.name])
        if "choices" in field.metadata:
            kwargs["choices"] = field.metadata["choices"]
            del kwargs["metavar"]
        group.add_argument(flag_name(field.name), **kwargs)


def flag_name(field: str) -> str:
    """Gives the flag of a field: `batch_size` is --batch-size."""
    return "--" + field.replace("_", "-")


def make(config: type[C], flags: argparse.Namespace, file: Mapping[str, Any]) -> C:
    """Makes a config from its defaults, the file's values over them, and the flags over both.

    Raises:
      UsageError: a value in the file is not of its field's type, a required value is absent, or the
        config's own check fails.
    """
    hints = typing.get_type_hints(config)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        given = getattr(flags, field.name, None)
        if given is not None:
            values[field.name] = given
        elif field.name in file:
            values[field.name] = _convert(field.name, hints[field.name], file[field.name])
        elif _default(field) is dataclasses.MISSING:
            raise UsageError(f"{flag_name(field.name)} is required")
    return config(**values)


def read_file(path: str | None, *configs: type) -> dict[str, Any]:
    """Reads the values of a TOML file.

    Args:
      path: of the file; None gives no values.
      configs: whose fields the keys must be; without any, every key is taken.

    Raises:
      UsageError: the file cannot be read, is not TOML, or has an unknown key.
    """
    if path is None:
        return {}
    try:
        values = tomllib.loads(Path(check_text("--config", path)).read_text())
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not TOML, or not UTF-8
        raise UsageError(f"--config {path} must be a readable TOML file: {error}") from error
    known = {f.name for config in configs for f in dataclasses.fields(config)}
    unknown = sorted(set(values) - known) if configs else []
    if unknown:
        raise UsageError(f"--config {path} has keys {unknown}; it may have {sorted(known)}")
    return values


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _help(field: dataclasses.Field[Any], default: Any) -> str:
    text = str(field.metadata.get("help", "")).replace("%", "%%")
    if default is dataclasses.MISSING:
        return f"{text} (required)"
    if default is None or default == "":
        return text
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    return f"{text} (default: {default})"


def _reader(hint: Any) -> Callable[[str], Any]:
    bare = without_none(hint)
    if typing.get_origin(bare) is tuple:
        item = typing.get_args(bare)[0]

        def integers(text: str) -> tuple[Any, ...]:
            return tuple(item(part) for part in text.split(",") if part)

        return integers
    return bare  # type: ignore[no-any-return]


def _metavar(hint: Any) -> str:
    bare = without_none(hint)
    if typing.get_origin(bare) is tuple:
        return "N,N,…"
    return {int: "N", float: "X", str: "NAME"}.get(bare, "VALUE")


def _convert(name: str, hint: Any, value: Any) -> Any:
    bare = without_none(hint)
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
