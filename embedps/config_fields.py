"""What a config's fields may hold: a field's metadata says it, and `check` sees to it."""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
import os
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from embedps.errors import UsageError

MAX_COUNT = 2**31 - 1
MAX_INT64 = 2**63 - 1
MAX_SECS = 1e9
"""About 30 years; the longest wait that the system takes is some times that."""


def option(default: Any, text: str, **metadata: Any) -> Any:
    """A field of a config, and the flag of it.

    Args:
      default: its value; dataclasses.MISSING where it must be given.
      text: the flag's help.
      metadata: of `check_value`; and `metavar`, of the flag.
    """
    return dataclasses.field(default=default, metadata={"help": text, **metadata})


def check(config: Any) -> None:
    """Checks each field of a frozen dataclass; to be called by its __post_init__.

    What stands for a value, such as a NumPy number, a list or a Path, becomes that value.

    Raises:
      UsageError: a field holds what its type or its metadata does not allow.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        name, given = field.name, getattr(config, field.name)
        value = check_value(name, hints[name], given, field.metadata)
        if value is not given:
            object.__setattr__(config, name, value)


def check_value(name: str, hint: Any, value: Any, metadata: Mapping[str, Any]) -> Any:
    """Checks a value and gives it as the type that it must be.

    Args:
      name: of the field, for the message.
      hint: int, float, bool, str, a tuple of one of these, or one of these or None.
      value: what came.
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
    if kind is str:
        value = check_text(name, value)
    elif kind is bool and not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False but got {shown(value)}")
    elif kind in (int, float):
        value = _number(name, kind, value)
        _check_bounds(name, value, metadata)
    choices = metadata.get("choices")
    if choices is not None and value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)} but got {shown(value)}")
    return value


def check_text(name: str, value: Any) -> str:
    """Checks a name or a path, and gives it as a text.

    Raises:
      UsageError: it is no text, blank (as of an unset shell variable), or has a NUL or what is not
        of Unicode, which no file's name here may have.
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


def without_none(hint: Any) -> Any:
    """The type behind `X | None`."""
    if isinstance(hint, types.UnionType):
        return next(h for h in typing.get_args(hint) if h is not type(None))
    return hint


def shown(value: Any) -> str:
    """A value for a message, in at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no longer number
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
