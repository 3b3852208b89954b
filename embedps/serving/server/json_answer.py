"""Writes the JSON of answers: of a small one by Python, of a large one by C++, beside others."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from embedps import kernels
from embedps.serving.server.batcher import Answer
from embedps.serving.server.json_bodies import json_bytes, text_of
from embedps.serving.server.tensor_values import Array

_SMALL = 1 << 12  # values that Python writes
_PART = 1 << 16  # values that are written at a time
_TEXTS = 1 << 12  # texts that Python makes while no other thread runs
_KINDS = {"int64": 0, "float32": 1, "float64": 2, "bool": 3, "object": 4}  # JsonOutputKind


class _Output(ctypes.Structure):  # JsonOutput
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("data_size", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


def answer_json(answer: Answer, *, by_row: bool) -> bytes:
    """Writes the body of an answer."""
    outputs = answer.outputs
    may_write = all(a.dtype.name in _KINDS and a.ndim in (1, 2) for a in outputs.values())
    if not may_write or sum(array.size for array in outputs.values()) <= _SMALL:
        return json_bytes(_body(outputs, by_row=by_row))
    if by_row:
        return b"".join([b'{"predictions": [', *_rows(outputs), b"]}"])
    if len(outputs) == 1:
        return b"".join([b'{"outputs": [', *_rows(outputs), b"]}"])
    pieces, between = [b'{"outputs": {'], b""
    for name, array in outputs.items():
        pieces += [between, json.dumps(name).encode(), b": [", *_rows({name: array}), b"]"]
        between = b", "
    return b"".join([*pieces, b"}}"])


def _body(outputs: Mapping[str, Array], *, by_row: bool) -> Any:
    columns = {name: array.tolist() for name, array in outputs.items()}
    if len(columns) == 1:
        (made,) = columns.values()
        return {"predictions" if by_row else "outputs": made}
    if not by_row:
        return {"outputs": columns}
    rows = zip(*columns.values(), strict=True)
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in rows]}


def _rows(outputs: Mapping[str, Array]) -> Iterator[bytes]:
    """Writes rows: objects of all outputs, or the values of the only one."""
    rows = len(next(iter(outputs.values())))
    values = sum(array.shape[1] if array.ndim == 2 else 1 for array in outputs.values())
    step = max(1, _PART // max(1, values))
    for first in range(0, rows, step):
        if first:
            yield b", "
        yield _part({n: a[first : first + step] for n, a in outputs.items()})


def _part(outputs: Mapping[str, Array]) -> bytes:
    library = kernels.library()
    write, data = library.embedps_write_rows, library.embedps_text_data
    write.restype = data.restype = ctypes.c_void_p
    table, kept = (_Output * len(outputs))(), []
    for place, (name, array) in enumerate(outputs.items()):
        held: Any = _texts(array) if array.dtype == object else np.ascontiguousarray(array)
        kept.append(held)
        is_text = isinstance(held, bytes)
        at = ctypes.cast(ctypes.c_char_p(held), ctypes.c_void_p) if is_text else held.ctypes.data
        width = array.shape[1] if array.ndim == 2 else -1
        size = len(held) if is_text else 0
        name_json = json.dumps(name).encode()
        table[place] = _Output(name_json, _KINDS[array.dtype.name], at, size, width)
    size_of = ctypes.c_int64()
    text = ctypes.c_void_p(
        write(
            table,
            ctypes.c_int64(len(outputs)),
            ctypes.c_int64(len(next(iter(outputs.values())))),
            ctypes.c_bool(len(outputs) > 1),
            ctypes.byref(size_of),
        )
    )
    try:
        return ctypes.string_at(data(text), size_of.value)
    finally:
        library.embedps_free_text(text)


def _texts(array: Array) -> bytes:
    """Writes texts as a list of JSON."""
    flat, parts = array.ravel(), []
    for first in range(0, flat.size, _TEXTS):
        some = flat[first : first + _TEXTS].tolist()
        parts.append(json.dumps(some, default=text_of)[1:-1])
    return f"[{', '.join(parts)}]".encode()
