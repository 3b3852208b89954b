"""Splits texts of lists into their elements: separated, or as JSON and Python write lists."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from embedps.features.table_columns import Column

_NUMBERS = re.compile(r"\[[-+.0-9eE\s]*\]")
"""Numbers as NumPy writes them, without commas."""
_SHOWN_CHARS = 40


def split_lists(column: Column, texts: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Splits texts into lists of texts; elements are stripped, and empty ones are left out.

    Numbers of a `float_list` have places: there an empty element stays, unless spaces separate.

    Returns:
      the lists, null where a text is, and the reason for each row that is not a list.
    """
    stripped = pc.utf8_trim_whitespace(texts)
    whole, last = stripped, column.separator.strip()
    if last and last != column.separator:
        # Stripped, a text may end in a separator that has lost its space.
        whole = pc.replace_substring_regex(stripped, re.escape(last) + "$", "")
    lists = _without_gaps(column, pc.split_pattern(whole, column.separator))
    written = _written_as_lists(stripped)
    if not written.any():
        return lists, {}
    read: dict[str, list[str] | None] = {}
    rows = lists.to_pylist()
    bad: dict[int, str] = {}
    for row in np.flatnonzero(written):
        text = stripped[row].as_py()
        if text not in read:
            read[text] = _elements(text, keeps_gaps=column.role == "float_list")
        elements = read[text]
        if elements is not None:
            rows[row] = elements
        elif not text.startswith("("):
            rows[row] = []
            shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
            bad[int(row)] = (
                "must be a list as JSON or Python writes it, or elements with "
                f"{column.separator!r} between them, got {shown!r}"
            )
    return pa.array(rows, pa.list_(pa.string())), bad


def _without_gaps(column: Column, lists: pa.Array) -> pa.Array:
    elements = pc.utf8_trim_whitespace(lists.flatten())
    lengths = pc.list_value_length(lists)
    counts = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    is_kept = pc.not_equal(elements, "").to_numpy(zero_copy_only=False)
    if column.role == "float_list" and not column.separator.isspace():
        is_kept = is_kept | np.repeat(counts > 1, counts)
    if not is_kept.all():
        before = np.concatenate([[0], np.cumsum(is_kept)])
        ends = np.cumsum(counts)
        counts = before[ends] - before[ends - counts]
        elements = elements.filter(pa.array(is_kept))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    is_null = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), elements, mask=is_null)


def _written_as_lists(texts: pa.Array) -> NDArray[np.bool_]:
    """Tells which texts begin and end in brackets."""
    written = np.zeros(len(texts), np.bool_)
    for opening, closing in ("[]", "()", "{}"):
        begins = pc.fill_null(pc.starts_with(texts, opening), False)
        if pc.any(begins).as_py():
            ends = pc.fill_null(pc.ends_with(texts, closing), False)
            written |= pc.and_(begins, ends).to_numpy(zero_copy_only=False)
    return written


def _elements(text: str, *, keeps_gaps: bool) -> list[str] | None:
    """Returns the elements of a list, a tuple or a set; None if the text is none of scalars."""
    if _NUMBERS.fullmatch(text):
        return text[1:-1].split()
    values: Any
    try:
        # Numbers stay as they are written.
        values = json.loads(text, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        values = _python_values(text)
    if not isinstance(values, list) or not all(isinstance(v, str | None) for v in values):
        return None
    return [value or "" for value in values if value or keeps_gaps]


def _python_values(text: str) -> list[Any] | None:
    try:
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.List | ast.Tuple | ast.Set):
            return None
        values = [ast.literal_eval(each) for each in node.elts]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    numbers = (int, float)
    return [repr(v) if isinstance(v, numbers) and not isinstance(v, bool) else v for v in values]
