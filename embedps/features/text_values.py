"""Decodes one text to one value, or explains why the text is not accepted."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import numpy as np
import xxhash
from numpy.typing import NDArray

from embedps.data.dataset import MISSING_ID, RARE_ID
from embedps.features.table_columns import Column

_INTEGER = re.compile(r"(-?[0-9]+)(?:\.0*)?")
_EXPONENT = r"([eE][-+]?[0-9]+)?"
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)" + _EXPONENT)
_BINARY = re.compile(r"[01](\.0+)?")
_HEX = re.compile(r"[0-9a-fA-F]+")
_SHOWN_CHARS = 40
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIN_INT, MAX_INT = -(1 << 63), (1 << 63) - 1
MAX_UNSIGNED_ID = (1 << 64) - 3
"""The largest unsigned id; the two above it have the bits of MISSING_ID and RARE_ID."""


def text_decoder(column: Column) -> Callable[[str], float | int]:
    """Returns a function that decodes a column's texts; it raises ValueError with the reason."""
    if column.role == "label":
        return _label_decoder(column)
    if column.role == "timestamp" and column.type == "text":
        return lambda text: _time_text(text, column.format)
    if column.role == "timestamp":
        scale = 1000 if column.type == "seconds" else 1
        return lambda text: _time_number(text, scale)
    if column.role == "weight":
        return _weight
    if column.role == "numeric":
        return lambda text: float(_integer(text) if column.type == "integer" else _float(text))
    if column.type == "string" and column.on_text is not None:
        return functools.partial(_told, column.on_text)
    return {"hex": _hex, "integer": _id, "string": fingerprint}[column.type]


def marked_number(column: Column) -> str:
    """Returns the regular expression of a column's numbers, as `decimal` and `thousands` say."""
    point, between = (_class_of(mark) for mark in (column.decimal, column.thousands))
    # No thousands begin with 0: "0,567" is a fraction.
    whole = f"([1-9][0-9]{{0,2}}({between}[0-9]{{3}})+|[0-9]+)" if between else "[0-9]+"
    return f"[-+]?({whole}({point}[0-9]*)?|{point}[0-9]+){_EXPONENT}"


def _class_of(mark: str) -> str:
    """Writes a character for a regular expression of Python or of RE2; nothing of none."""
    return mark and "[" + ("\\" if mark in "\\]^" else "") + mark + "]"


def marked_reason(column: Column, text: str) -> str:
    """Says why a text is none of a column's numbers."""
    shown = f"1{column.thousands}234{column.decimal}5"
    return f"must be a number such as {shown}, or empty, got {_shown(text)}"


def _told(on_text: Callable[[str, int], None], text: str) -> int:
    made = fingerprint(text)
    on_text(text, made)
    return made


def _label(text: str, positive_from: float | None, is_soft: bool) -> float:
    if is_soft:
        if not 0 <= (value := _float(text)) <= 1:
            raise ValueError(f"must be a number from 0 to 1, got {_shown(text)}")
        return value
    if positive_from is not None:
        return float(_float(text) >= positive_from)
    if not _BINARY.fullmatch(text):
        raise ValueError(f"must be 0 or 1, got {_shown(text)}")
    return float(text)  # pandas writes 1.0 where a label was missing


def _label_decoder(column: Column) -> Callable[[str], float | int]:
    if column.task == "number":
        return _float
    if isinstance(column.classes, tuple):
        kind = float if column.task == "binary" else int
        places = {name: kind(i) for i, name in enumerate(column.classes)}
        return lambda text: _class(text, places)
    if column.task == "classes":
        return lambda text: _class_number(text, column.num_classes)
    return lambda text: _label(text, column.positive_from, column.soft)


def _class(text: str, places: Mapping[str, float]) -> float | int:
    if text not in places:
        few = " or ".join(map(repr, places)) if len(places) == 2 else f"the {len(places)} classes"
        raise ValueError(f"must be one of {few}, got {_shown(text)}")
    return places[text]


def _class_number(text: str, num_classes: int) -> int:
    value = _integer(text)
    if not 0 <= value < num_classes:
        raise ValueError(f"must be a class from 0 to {num_classes - 1}, got {_shown(text)}")
    return value


def _integer(text: str, largest: int = MAX_INT) -> int:
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise ValueError(f"must be an integer or empty, got {_shown(text)}")
    # Python refuses to parse numbers of over 4,300 digits; leading zeros may make them long.
    digits = match[1].lstrip("-").lstrip("0")
    value = int(digits or "0") if len(digits) <= 20 else 1 << 64
    value = -value if text.startswith("-") else value
    if not MIN_INT <= value <= largest:
        raise ValueError(f"must fit in 64 bits, got {_shown(text)}")
    return value


def _id(text: str) -> int:
    return signed_id(_integer(text, (1 << 64) - 1))


def signed_id(value: int) -> int:
    """Gives an id from -2^63 to 2^64 - 3 as int64 of the same bits; raises ValueError if larger."""
    if value > MAX_UNSIGNED_ID:
        raise ValueError(
            f"must be at most {MAX_UNSIGNED_ID}, as the two above mean missing and rare, "
            f"got {value}"
        )
    return value - (1 << 64) if value > MAX_INT else value


def _float(text: str) -> float:
    if not _FLOAT.fullmatch(text):
        marks = ": decimal and thousands in the schema say how it is written" if "," in text else ""
        raise ValueError(f"must be a number or empty, got {_shown(text)}{marks}")
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"must be a finite number, got {_shown(text)}")
    if not fits_float32(np.array(value)):
        raise ValueError(f"must be a number that fits in 32 bits, got {_shown(text)}")
    return value


def fits_float32(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tells which numbers are finite as float32."""
    with np.errstate(over="ignore"):
        return np.isfinite(values.astype(np.float32))


def _weight(text: str) -> float:
    value = _float(text)
    if value < 0:
        raise ValueError(f"must be 0 or more, got {_shown(text)}")
    return value


def _hex(text: str) -> int:
    if not _HEX.fullmatch(text):
        raise ValueError(f"must be a hexadecimal id or empty, got {_shown(text)}")
    digits = text.lstrip("0")
    if len(digits) > 16:
        raise ValueError(f"must fit in 64 bits, got {_shown(text)}")
    return signed_id(int(digits or "0", 16))


def fingerprint(text: str) -> int:
    """Hashes a text to an id: the XXH3-64 of its UTF-8 as int64, never one of the reserved ids."""
    value = xxhash.xxh3_64_intdigest(text.encode("utf-8"))
    value -= (value >> 63) << 64
    return value + RARE_ID if value in (MISSING_ID, RARE_ID) else value


def _time_number(text: str, scale: int) -> int:
    if not _INTEGER.fullmatch(text):
        return _time_fraction(text, scale)
    value = _integer(text)
    if abs(value) > MAX_INT // 1000:
        raise ValueError(f"must be a time within 64 bits of milliseconds, got {_shown(text)}")
    return value * scale


def _time_fraction(text: str, scale: int) -> int:
    if not _FLOAT.fullmatch(text):
        raise ValueError(f"must be a number or empty, got {_shown(text)}")
    value = float(text)
    if not abs(value) <= MAX_INT // 1000:
        raise ValueError(f"must be a time within 64 bits of milliseconds, got {_shown(text)}")
    return round(value * scale)


def _time_text(text: str, time_format: str) -> int:
    if time_format == "iso":
        return _milliseconds(_iso_time(text))
    try:
        return _milliseconds(datetime.strptime(text, time_format))
    except ValueError:
        pass
    reason = f"must be a time of format {time_format}, got {_shown(text)}"
    try:
        _iso_time(text)
    except ValueError:
        raise ValueError(reason) from None
    raise ValueError(f'{reason}, which format = "iso" reads')


def _iso_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"must be a time as ISO 8601 writes it, such as 2024-05-01T12:00:00.5Z, "
            f"got {_shown(text)}"
        ) from None


def _milliseconds(time: datetime) -> int:
    """Returns the milliseconds since 1970, rounded down; a time without a zone is in UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // timedelta(milliseconds=1)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")
