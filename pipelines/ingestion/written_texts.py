"""Finds how texts are written: numbers with marks, times, and words of yes and no."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from embedps.features.table_columns import Column
from embedps.features.text_values import marked_number, text_decoder

_TIME_FORMATS = (
    (r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?", "iso"),
    (r"\d{4}/\d\d/\d\d", "%Y/%m/%d"),
    (r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d", "%Y/%m/%d %H:%M:%S"),
    (r"20[0-3]\d[01]\d[0-3]\d", "%Y%m%d"),
    (r"[0-3]\d[01]\d[0-3]\d[0-2]\d", "%y%m%d%H"),
    *(
        (rf"\d\d?{mark}\d\d?{mark}\d{{4}}{pattern}", date.replace("/", mark[-1]) + time)
        for mark, dates in (("/", ("%d/%m/%Y", "%m/%d/%Y")), (r"\.", ("%d/%m/%Y",)))
        for pattern, time in (
            ("", ""),
            (r" \d\d?:\d\d", " %H:%M"),
            (r" \d\d?:\d\d:\d\d", " %H:%M:%S"),
            (r" \d\d?:\d\d [AaPp][Mm]", " %I:%M %p"),
            (r" \d\d?:\d\d:\d\d [AaPp][Mm]", " %I:%M:%S %p"),
        )
        for date in dates
    ),
)
_TRIED_TIMES = 10_000
_PAIRS = (("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("negative", "positive"))
_MARKS = (
    *((".", ","), (",", "."), (",", ""), (",", " "), (",", "\u00a0"), (",", "\u202f")),
    *((".", " "), (".", "\u00a0"), (".", "\u202f"), (".", "'"), (".", "\u2019")),
)
"""What numbers may have before the fraction, and between groups of three digits."""


def marks_of(values: pa.Array) -> Column | None:
    """Finds how texts of numbers are written, if not as Python does; None if they are none."""
    if not pa.types.is_string(values.type):
        return None
    for decimal, thousands in _MARKS:
        if share_with(values, thousands or decimal) > 0:
            plain = Column(name="c", role="numeric", type="float")
            column = replace(plain, decimal=decimal, thousands=thousands)
            if all_match(values, marked_number(column)):
                return column
    return None


def _are_times(values: pa.Array, time_format: str) -> bool:
    """Tells whether texts are times of a format; of many, the first are tried."""
    decode = text_decoder(Column(name="c", role="timestamp", type="text", format=time_format))
    try:
        for text in pc.unique(values)[:_TRIED_TIMES].to_pylist():
            decode(text)
    except ValueError:
        return False
    return True


def time_formats(values: pa.Array) -> list[str]:
    """Gives the formats of which all texts are times; that of the day first is first."""
    return [f for p, f in _TIME_FORMATS if all_match(values, p) and _are_times(values, f)]


def two_words(values: pa.Array) -> list[str] | None:
    """Gives two texts, the positive one last, if all values are one of two known words."""
    if not pa.types.is_string(values.type) or pc.count_distinct(values).as_py() != 2:
        return None
    found = sorted(pc.unique(values).to_pylist(), key=str.lower)
    return found if tuple(text.lower() for text in found) in _PAIRS else None


def share_with(values: pa.Array, text: str) -> float:
    """Tells which share of texts has another one in it."""
    found = pc.mean(pc.match_substring(values, text).cast(pa.float64())).as_py()
    return float(found or 0)


def all_match(values: pa.Array, pattern: str) -> bool:
    """Tells whether a regular expression matches each of the texts, as a whole."""
    return bool(pc.all(pc.match_substring_regex(pc.unique(values), f"^({pattern})$")).as_py())
