"""Changes of JSON and TOML documents that stay JSON and TOML: a fuzzer of bytes rarely makes one.

It replaces, moves, repeats or removes values, names and lines.
"""

from __future__ import annotations

import copy
import json
import random
import tomllib
from collections.abc import Callable
from typing import Any

Change = Callable[[bytes, random.Random], bytes]
"""Gives a changed document; the same one if it cannot be read."""

_NUMBERS = (0, 1, -1, 2, 255, 65536, 1 << 31, -(1 << 63), (1 << 63) - 1, 1 << 64, 10**400)
_FLOATS = (0.5, -0.0, 1e308, 1e-320, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", " ", "\0", "..", "../x", "/", "a" * 300, "\ud800", "é\n\x1b[31m", "1", "nan", "²")
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None})


def change_json(data: bytes, rng: random.Random) -> bytes:
    """Changes a JSON document, or a line of several."""
    lines = data.splitlines(keepends=True)
    try:
        if len(lines) > 1 and all(_is_json(line) for line in lines):
            at = rng.randrange(len(lines))
            lines[at] = json.dumps(_changed(json.loads(lines[at]), rng)).encode() + b"\n"
            return b"".join(lines)
        changed = _changed(json.loads(data), rng)
        return json.dumps(changed, ensure_ascii=rng.random() < 0.5).encode(errors="replace")
    except (ValueError, RecursionError):
        return data


def change_toml(data: bytes, rng: random.Random) -> bytes:
    """Changes a TOML document; its tables become values in braces."""
    try:
        changed = _changed(tomllib.loads(data.decode()), rng)
        if not isinstance(changed, dict):
            return data
        lines = [f"{_quoted(key)} = {_toml(value)}\n" for key, value in changed.items()]
        return "".join(lines).encode(errors="replace")
    except (ValueError, RecursionError):
        return data


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return _quoted(value or "") if isinstance(value, str | None) else str(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _changed(document: Any, rng: random.Random) -> Any:
    for _ in range(rng.randint(1, 3)):
        places = _places(document)
        if not places:
            return _value(document, rng)
        parent, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind < 3:
            parent[key] = _value(parent[key], rng)
        elif kind == 3:
            other, its_key = rng.choice(places)
            parent[key] = copy.deepcopy(other[its_key])
        elif kind == 4:
            del parent[key]
        elif isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        else:
            other, its_key = rng.choice(places)
            parent[str(its_key) if rng.random() < 0.7 else rng.choice(_TEXTS)] = parent.pop(key)
    return document


def _value(old: Any, rng: random.Random) -> Any:
    """Gives another value, most often of the same kind."""
    if rng.random() < 0.3:
        return copy.deepcopy(rng.choice([*_NUMBERS, *_FLOATS, *_TEXTS, *_OTHERS]))
    if isinstance(old, bool) or old is None:
        return rng.choice((True, False, None))
    if isinstance(old, int):
        return rng.choice([*_NUMBERS, old + 1, old - 1, -old, old * 2, float(old & 0xFFFF)])
    if isinstance(old, float):
        return rng.choice([*_FLOATS, -old, round(old) if abs(old) < 1e300 else 0])
    if isinstance(old, str):
        at = rng.randrange(len(old) + 1)
        return rng.choice([*_TEXTS, old[:at] + rng.choice(_TEXTS) + old[at:], old[:at], old[at:]])
    return copy.deepcopy(rng.choice(_OTHERS))


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Lists all containers with each of their keys."""
    found: list[tuple[Any, Any]] = []
    left = [document] if isinstance(document, dict | list) else []
    while left:
        each = left.pop()
        keys = list(each) if isinstance(each, dict) else range(len(each))
        found += [(each, key) for key in keys]
        left += [value for key in keys if isinstance(value := each[key], dict | list)]
    return found
