"""Decodes one text to one value, or explains why the text is not accepted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime

import xxhash

from embedps.data.dataset import MISSING_ID, RARE_ID

from .table_schema import Column

_INTEGER = re.compile(r"-?[0-9]+")
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_HEX = re.compile(r"[0-9a-fA-F]+")
_SHOWN_CHARS = 40
MIN_INT, MAX_INT = -(1 << 63), (1 << 63) - 1


def text_decoder(column: Column) -> Callable[[str], float | int]:
    """Returns a function that decodes a column's texts; it raises ValueError with the reason."""
    if column.role == "label":
        return _label_decoder(column)
    if column.role == "timestamp" and column.type == "text":
        return lambda text: _time_text(text, column.format)
    if column.role == "timestamp":
        scale = 1000 if column.type == "seconds" else 1
        return lambda text: _time_integer(text, scale)
    if column.role == "weight":
        return _weight
    if column.role == "numeric":
        return lambda text: float(_integer(text) if column.type == "integer" else _float(text))
    return {"hex": _hex, "integer": _integer, "string": fingerprint}[column.type]


def _label(text: str, positive_from: float | None) -> float:
    if positive_from is not None:
        return float(_float(text) >= positive_from)
    if text not in ("0", "1"):
        raise ValueError(f"must be 0 or 1, got {_shown(text)}")
    return float(text)


def _label_decoder(column: Column) -> Callable[[str], float | int]:
    if column.task == "number":
        return _float
    if isinstance(column.classes, tuple):
        places = {name: i for i, name in enumerate(column.classes)}
        return lambda text: _class(text, places)
    if column.task == "classes":
        return lambda text: _class_number(text, column.num_classes)
    return lambda text: _label(text, column.positive_from)


def _class(text: str, places: dict[str, int]) -> int:
    if text not in places:
        raise ValueError(f"must be one of the {len(places)} classes, got {_shown(text)}")
    return places[text]


def _class_number(text: str, num_classes: int) -> int:
    value = _integer(text)
    if not 0 <= value < num_classes:
        raise ValueError(f"must be a class from 0 to {num_classes - 1}, got {_shown(text)}")
    return value


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"must be an integer or empty, got {_shown(text)}")
    # Python refuses to parse numbers of over 4,300 digits; leading zeros may make them long.
    digits = text.lstrip("-").lstrip("0")
    value = int(digits or "0") if len(digits) <= 19 else 1 << 64
    value = -value if text.startswith("-") else value
    if not MIN_INT <= value <= MAX_INT:
        raise ValueError(f"must fit in 64 bits, got {_shown(text)}")
    return value


def _float(text: str) -> float:
    if not _FLOAT.fullmatch(text):
        raise ValueError(f"must be a number or empty, got {_shown(text)}")
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"must be a finite number, got {_shown(text)}")
    return value


def _weight(text: str) -> float:
    value = _float(text)
    if value < 0:
        raise ValueError(f"must be 0 or more, got {_shown(text)}")
    return value


def _hex(text: str) -> int:
    if not _HEX.fullmatch(text):
        raise ValueError(f"must be a hexadecimal id or empty, got {_shown(text)}")
    digits = text.lstrip("0")
    value = int(digits or "0", 16) if len(digits) <= 16 else 1 << 64
    if value > MAX_INT:
        raise ValueError(f"must fit in 63 bits, got {_shown(text)}")
    return value


def fingerprint(text: str) -> int:
    """Hashes a text to an id: the XXH3-64 of its UTF-8 as int64, never one of the reserved ids."""
    value = xxhash.xxh3_64_intdigest(text.encode("utf-8"))
    value -= (value >> 63) << 64
    return value + RARE_ID if value in (MISSING_ID, RARE_ID) else value


def _time_integer(text: str, scale: int) -> int:
    value = _integer(text)
    if abs(value) > MAX_INT // 1000:
        raise ValueError(f"must be a time within 64 bits of milliseconds, got {_shown(text)}")
    return value * scale


def _time_text(text: str, time_format: str) -> int:
    try:
        time = datetime.strptime(text, time_format)
    except ValueError:
        raise ValueError(f"must be a time of format {time_format}, got {_shown(text)}") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return int(time.timestamp() * 1000)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")
