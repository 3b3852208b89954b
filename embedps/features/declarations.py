"""Parses what a schema declares: its columns, and the features made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from embedps.config_fields import shown
from embedps.errors import UsageError
from embedps.features.table_columns import (
    COLUMN_TYPES,
    ID_TYPES,
    ROLES,
    Column,
    Feature,
    History,
)
from embedps.features.transform_steps import finite_number, parse_step

_MOST_LEVELS = 8  # of lists of lists that are cut
_KINDS = {str: "a text", bool: "true or false"}
_COLUMN_SETTINGS = {
    **dict.fromkeys(("type", "separator", "format", "decimal", "thousands"), str),
    **dict.fromkeys(("task", "weight"), str),
    **dict.fromkeys(("keep", "flatten", "optional", "soft"), bool),
}
_SOURCES = ("numeric", "categorical", "list", "timestamp")


def are_texts(node: Any) -> bool:
    """Tells whether a setting is a list of texts."""
    return isinstance(node, list) and all(isinstance(each, str) for each in node)


def check_kinds(where: str, node: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Checks of which kind the settings are; raises UsageError if one is of another."""
    for key, kind in kinds.items():
        if key in node and not isinstance(node[key], kind):
            raise UsageError(f"{where}: {key} must be {_KINDS[kind]}, got {shown(node[key])}")


def parse_columns(
    entries: Sequence[Mapping[str, Any]],
) -> tuple[list[Column], list[Feature]]:
    """Parses columns, and the features that they declare with themselves.

    Raises:
      UsageError: one is not valid.
    """
    columns: list[Column] = []
    features: list[Feature] = []
    for each in entries:
        entry = dict(each)
        names = entry.pop("names", None) or [entry.pop("name", "")]
        if not are_texts(names):
            raise UsageError(f"a column must have a name, or a list of names, got {shown(names)}")
        transform = entry.pop("transform", [])
        for name in names:
            column = _column(name, entry)
            columns.append(column)
            if column.role in ("numeric", "categorical", "list"):
                features.append(_feature(column.name, (column,), transform))
            elif transform:
                raise UsageError(f"column {name!r}: a {column.role} column has no transform")
    return columns, features


def _column(name: str, entry: Mapping[str, Any]) -> Column:
    settings = dict(entry)
    role = settings.pop("as", None)
    unknown = set(settings) - {
        "type", "separator", "format", "decimal", "thousands", "positive_from", "task", "classes",
        "keep", "path", "flatten", "cut", "optional", "soft", "weight", "history", "value",
    }  # fmt: skip
    if unknown:
        raise UsageError(f"column {name!r} has no setting {', '.join(sorted(unknown))}")
    if role not in ROLES:
        raise UsageError(f"column {name!r}: as must be one of {ROLES}, got {shown(role)}")
    check_kinds(f"column {name!r}", settings, _COLUMN_SETTINGS)
    if "positive_from" in settings:
        finite_number(f"column {name!r}: positive_from", settings["positive_from"])
    default = "text" if "format" in settings else COLUMN_TYPES[role][0]
    if "classes" in settings:
        settings["classes"] = _classes(name, settings["classes"])
        settings.setdefault("task", "classes")
    if "value" in settings:
        settings["value"] = str(settings["value"])
    if "cut" in settings:
        settings["cut"] = _cut(name, settings["cut"])
    if "history" in settings:
        settings["history"] = _history(name, settings["history"])
    if "path" in settings:
        settings["path"] = _path(name, settings["path"])
    if role in ("categorical", "list", "key") and "type" not in settings:
        raise UsageError(f"column {name!r}: type must be given, one of {ID_TYPES}")
    return Column(name=name, role=role, type=settings.pop("type", default), **settings)


def _path(name: str, node: Any) -> tuple[str, ...]:
    keys = node.split(".") if isinstance(node, str) else node
    if not are_texts(keys) or not keys or not all(keys):
        raise UsageError(
            f'column {name!r}: path must be keys with a "." between, or a list of them if a key '
            f"has one, got {shown(node)}"
        )
    return tuple(keys)


def _cut(name: str, node: Any) -> tuple[int, ...]:
    numbers = [node] if type(node) is int else node
    is_valid = isinstance(numbers, list) and any(numbers) and len(numbers) <= _MOST_LEVELS
    if not is_valid or any(type(n) is not int or abs(n) >= 1 << 31 for n in numbers):
        raise UsageError(
            f"column {name!r}: cut must be how many elements a list keeps, below 0 of its end, or "
            f"a list of such numbers, one for each level of lists, got {shown(node)}"
        )
    return tuple(numbers)


def _history(name: str, node: Any) -> History:
    kinds = {"of": str, "by": str, "positives": bool}
    if not isinstance(node, Mapping) or not {"of", "by"} <= {*node}:
        raise UsageError(
            f"column {name!r}: history must have of = column and by = the user's column, got "
            f"{shown(node)}"
        )
    if unknown := {*node} - {*kinds, "length", "days"}:
        raise UsageError(f"column {name!r}: history has no setting {', '.join(sorted(unknown))}")
    check_kinds(f"column {name!r}: history", node, kinds)
    try:
        return History(**node)
    except UsageError as error:
        raise UsageError(f"column {name!r}: history: {error}") from None


def _classes(name: str, node: Any) -> int | tuple[str, ...]:
    if isinstance(node, int) and not isinstance(node, bool) and 2 <= node < 1 << 31:
        return node
    if are_texts(node) and len(node) >= 2:
        return tuple(node)
    raise UsageError(
        f"column {name!r}: classes must be a number from 2 to below 2**31, or a list of texts, got "
        f"{shown(node)}"
    )


def _feature(name: str, sources: tuple[Column, ...], transform: Any) -> Feature:
    if not isinstance(transform, list):
        raise UsageError(f"feature {name!r}: transform must be a list, got {shown(transform)}")
    try:
        parsed = tuple(parse_step(step) for step in transform)
    except UsageError as error:
        raise UsageError(f"feature {name!r}: {error}") from None
    kind = "categorical" if len(sources) > 1 else sources[0].role
    if kind in ("numeric", "timestamp") and parsed:
        kind = "categorical" if parsed[-1].gives == "ids" else "numeric"
    return Feature(name=name, sources=tuple(c.name for c in sources), kind=kind, steps=parsed)


def declared_feature(entry: Mapping[str, Any], columns: Mapping[str, Column]) -> Feature:
    """Parses a feature that is declared apart; raises UsageError if it is not valid."""
    name = entry.get("name", "")
    unknown = set(entry) - {"name", "from", "cross", "transform"}
    if not name or unknown or ("from" in entry) == ("cross" in entry):
        raise UsageError(
            f"a feature must have a name, from = column or cross = [columns], and transform, "
            f"got {shown(dict(entry))}"
        )
    sources = entry["cross"] if "cross" in entry else [entry["from"]]
    if not are_texts(sources) or ("cross" in entry and len(sources) < 2):
        raise UsageError(
            f"feature {name!r}: cross must list two or more columns, got {shown(sources)}"
        )
    allowed = ("categorical",) if "cross" in entry else _SOURCES
    for source in sources:
        if source not in columns or columns[source].role not in allowed:
            raise UsageError(
                f"feature {name!r} must be made of {' or '.join(allowed)} columns, got {source!r}"
            )
    return _feature(name, tuple(columns[s] for s in sources), entry.get("transform", []))
