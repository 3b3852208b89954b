"""Options of configs: what a field may hold, checks of it, and sections of fields by flat names."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import operator
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from embedps.errors import UsageError

C = TypeVar("C")

MAX_COUNT = 2**31 - 1
MAX_INT64 = 2**63 - 1
MAX_SECS = 1e9
"""About 30 years, which the system's waits can take; it has a limit not far above."""
NUMBER_OR_NAME = int | str
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


def option(default: Any, text: str, **metadata: Any) -> Any:
    """Declares a field of a config, which is a flag and a TOML key too.

    Args:
      default: its value; dataclasses.MISSING where it must be given.
      text: the flag's help.
      metadata: of `check_value`; `metavar` of the flag; `flag`, the option's name where that is
        not the field's; `required`, if only Python may leave it out; and how the command line
        gives it where that is not a flag and one value: `positional`, `several` (texts after one
        flag, or after the flag again), or `rest` (what no other option takes).
    """
    return dataclasses.field(default=default, metadata={"help": text, **metadata})


def python_only(default: Any) -> Any:
    """Declares a field that no flag and no file can give."""
    return dataclasses.field(default=default, metadata={"python_only": True})


def section(config: type) -> Any:
    """Declares a field that holds a section of options, a config of its own."""
    return dataclasses.field(default_factory=config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a config: a field of it, or of one of its sections.

    Attributes:
      name: of the flag, with underscores; unique in the config.
      section: the config's field that holds the option's section; None if there is no section.
      field: the dataclass's.
      hint: the field's type.
    """

    name: str
    section: str | None
    field: dataclasses.Field[Any]
    hint: Any

    @property
    def default(self) -> Any:
        """The option's default; dataclasses.MISSING where there is none."""
        if self.field.default_factory is not dataclasses.MISSING:
            return self.field.default_factory()
        return self.field.default

    @property
    def is_required(self) -> bool:
        """Whether a command line or a file must give it."""
        return self.default is dataclasses.MISSING or bool(self.field.metadata.get("required"))


def options_of(config: type) -> list[Option]:
    """Lists the options of a config and of its sections, in their order."""
    return list(_options(config, None))


def sections_of(config: type) -> dict[str, type]:
    """Gives the sections of a config by their fields' names."""
    hints = _hints_of(config)
    return {n: hint for n, hint in hints.items() if dataclasses.is_dataclass(hint)}  # type: ignore[misc]


def make(config: type[C], values: Mapping[str, Any], **others: Any) -> C:
    """Makes a config and its sections from the values of options by name.

    Args:
      config: its class.
      values: by the options' names.
      others: fields of the config that are no options.

    Raises:
      UsageError: a value is of the wrong type or out of range.
      TypeError: there is no such option, or a required one is missing.
    """
    found: dict[str | None, dict[str, Any]] = {}
    left = dict(values)
    for each in options_of(config):
        if each.name in left:
            found.setdefault(each.section, {})[each.field.name] = left.pop(each.name)
    if left:
        names = ", ".join(map(repr, sorted(left)))
        raise TypeError(f"{config.__name__} has no option {names}")
    sections = {n: kind(**found[n]) for n, kind in sections_of(config).items() if n in found}
    return config(**found.get(None, {}), **others, **sections)


def values_of(config: Any) -> dict[str, Any]:
    """Gives the values of a config's options by name."""
    found = {}
    for each in options_of(type(config)):
        holder = config if each.section is None else getattr(config, each.section)
        found[each.name] = getattr(holder, each.field.name)
    return found


def choices_of(hint: Any, metadata: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Gives the only values that a field may have; None where it may have others."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return metadata.get("choices")


def check(config: Any) -> None:
    """Checks each field of a frozen dataclass; its __post_init__ calls this.

    A NumPy number, a list or a Path becomes the plain value that it stands for.

    Raises:
      UsageError: a field holds what its type or its metadata does not allow.
    """
    hints = _hints_of(config.__class__)
    for field in dataclasses.fields(config):
        name, given = field.name, getattr(config, field.name)
        option_name = field.metadata.get("flag", name)
        value = check_value(option_name, hints[name], given, field.metadata)
        if value is not given:
            object.__setattr__(config, name, value)


def check_types(config: Any, whose: str) -> None:
    """Checks the types of a frozen dataclass's numbers, texts, bools and choices; not their bounds.

    A NumPy integer becomes the plain one that it stands for.

    Args:
      config: whose fields of other types are not checked.
      whose: begins the message, with the space or dot before a field's name.

    Raises:
      UsageError: a field is of another type.
    """
    hints = _hints_of(config.__class__)
    for field in dataclasses.fields(config):
        hint, given = hints[field.name], getattr(config, field.name)
        kind = without_none(hint)
        is_checked = kind in (int, float, bool, str) or typing.get_origin(kind) is Literal
        if not is_checked or (kind is float and isinstance(given, float)):
            continue
        value = check_value(f"{whose}{field.name}", hint, given, {})
        if kind is int:
            object.__setattr__(config, field.name, value)


def check_value(name: str, hint: Any, value: Any, metadata: Mapping[str, Any]) -> Any:
    """Checks a value and converts it to the type that it must have.

    Args:
      name: of the option, for the message.
      hint: int, float, bool, str, Path, a Literal of texts, a tuple of one of these, one of these
        or None, `int | str` of a number or a name, or the dataclass of a section.
      value: the value that was given.
      metadata: `least`, `above`, `most` and `below` bound a number, `choices` are all there is. A
        number must be finite unless `most` is infinite; a text must not be blank.

    Raises:
      UsageError: it is of another type, or out of bounds.
    """
    kind = without_none(hint)
    if value is None and kind is not hint:
        return None
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise UsageError(f"{name} must be a tuple but got {shown(value)}")
        item = typing.get_args(kind)[0]
        return tuple(check_value(name, item, each, metadata) for each in value)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, kind):  # type: ignore[arg-type]
            raise UsageError(f"{name} must be a {kind.__name__} but got {shown(value)}")  # type: ignore[union-attr]
        return value
    if kind == NUMBER_OR_NAME:
        kind = str if isinstance(value, str) and not _INTEGER.fullmatch(value) else int
        value = int(value) if kind is int and isinstance(value, str) else value
    choices = choices_of(kind, metadata)
    if kind is str or typing.get_origin(kind) is Literal:
        value = check_text(name, value)
    elif kind is Path:
        value = Path(check_text(name, value))
    elif kind is bool and not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False but got {shown(value)}")
    elif kind in (int, float):
        value = _number(name, kind, value)
        _check_bounds(name, value, metadata)
    if choices is not None and value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)} but got {shown(value)}")
    return value


def check_text(name: str, value: Any) -> str:
    """Checks a name or a path, and returns it as a text.

    Raises:
      UsageError: it is not a text, or blank (as an unset shell variable gives it), or has a NUL or
        a character that is not Unicode. No file's name here may have these.
    """
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise UsageError(f"{name} must be a text but got {shown(value)}")
    if not text.strip():
        raise UsageError(f"{name} must not be empty but got {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} must be text of Unicode but got {shown(text)}") from None
    if "\0" in text:
        raise UsageError(f"{name} must not have a NUL character but got {shown(text)}")
    return text


@functools.cache
def _hints_of(config: type) -> dict[str, Any]:
    """The types of a config's fields; to read them from their texts takes long."""
    return typing.get_type_hints(config)


def _options(config: type, section: str | None) -> Iterator[Option]:
    hints = _hints_of(config)
    for field in dataclasses.fields(config):
        hint = hints[field.name]
        if field.metadata.get("python_only"):
            continue
        if dataclasses.is_dataclass(hint):
            yield from _options(hint, field.name)  # type: ignore[arg-type]
        else:
            name = field.metadata.get("flag", field.name)
            yield Option(name=name, section=section, field=field, hint=hint)


def without_none(hint: Any) -> Any:
    """Returns the X of a type `X | None`; any other type as it is."""
    if isinstance(hint, types.UnionType):
        kinds = [h for h in typing.get_args(hint) if h is not type(None)]
        return functools.reduce(operator.or_, kinds)
    return hint


def shown(value: Any) -> str:
    """Formats a value for a message, in at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python formats no number that is longer
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _number(name: str, kind: type, value: Any) -> Any:
    wanted = "an integer" if kind is int else "a number"
    try:
        if isinstance(value, bool) or not issubclass(type(value), numbers.Real):
            raise TypeError
        return operator.index(value) if kind is int else float(value)
    except TypeError:
        raise UsageError(f"{name} must be {wanted} but got {shown(value)}") from None
    except OverflowError:
        raise UsageError(f"{name} must be finite but got {shown(value)}") from None


def _check_bounds(name: str, value: float, metadata: Mapping[str, Any]) -> None:
    for key, words, holds in (
        ("least", "at least", operator.ge),
        ("above", "above", operator.gt),
        ("most", "at most", operator.le),
        ("below", "below", operator.lt),
    ):
        bound = metadata.get(key)
        if bound is not None and not holds(value, bound):
            raise UsageError(f"{name} must be {words} {bound} but got {shown(value)}")
    if isinstance(value, float) and not math.isfinite(value) and metadata.get("most") != math.inf:
        raise UsageError(f"{name} must be finite but got {value}")
