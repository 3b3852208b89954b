"""Reads the JSON of a request: a small one by Python, a large one by C++, beside other threads."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from embedps import kernels
from embedps.serving.inputs import lengths_name, tensor_name
from embedps.serving.server.json_bodies import columns_of, rows_of, vector_of
from embedps.serving.server.request_error import invalid
from embedps.serving.server.request_size import MAX_ROWS, Place, column_bytes, most_values
from embedps.serving.server.requests import Format, Request
from embedps.serving.server.tensor_values import Array

SMALL_BYTES = 1 << 16  # Python reads them in 2 ms at most
_QUOTED_BYTES = 1 << 12  # of a wrong value that is read again to say what is wrong
_VALUE_BYTES = 16  # that C++ holds of a value, with room to grow
_PART = 1 << 12  # texts that are made while no other thread runs
_KINDS = {tf.int64: 0, tf.float32: 1, tf.float64: 2, tf.string: 3}  # JsonKind
_NO_LIST, _NO_OBJECT, _OTHER_NAME, _OTHER_NAMES, _TOO_MANY = 1, 2, 3, 4, 5  # JsonFault


class _Place(ctypes.Structure):  # JsonPlace
    _fields_ = (("begin", ctypes.c_int64), ("end", ctypes.c_int64))

    def of(self, data: bytes) -> bytes:
        return data[self.begin : self.end]


class _Body(ctypes.Structure):  # JsonBody
    _fields_ = (
        ("instances", _Place),
        ("inputs", _Place),
        ("signature_name", _Place),
        ("num_commas", ctypes.c_int64),
        ("is_object", ctypes.c_int64),
        ("wrong_at", ctypes.c_int64),
    )


class _Form(ctypes.Structure):  # JsonForm
    _fields_ = (
        ("names", ctypes.c_char_p),
        ("columns", ctypes.c_void_p),
        ("num_columns", ctypes.c_int64),
        ("max_rows", ctypes.c_int64),
    )


class _Error(ctypes.Structure):  # JsonError
    _fields_ = (
        ("fault", ctypes.c_int64),
        ("column", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("place", _Place),
    )


class JsonRequest:
    """A body that is JSON of one of the two forms.

    Attributes:
      by_row: whether it has "instances", and not "inputs".
      signature: its name, or "".
    """

    def __init__(self, data: bytes) -> None:
        """Takes a body.

        Raises:
          RequestError: it is of neither form.
        """
        self._data = data
        self._given: Any = None
        self._place: _Place | None = None
        self._num_commas = 0
        parts = self._parts() if len(data) <= SMALL_BYTES else self._large_parts()
        kinds = [kind for kind in ("instances", "inputs") if kind in parts]
        signature = parts.get("signature_name", "")
        if len(kinds) != 1 or not isinstance(signature, str):
            raise invalid(
                'the body must be {"instances": [...]} or {"inputs": {...}}, and may name its '
                '"signature_name"'
            )
        self.by_row = kinds[0] == "instances"
        self.signature = signature
        given = parts[kinds[0]]
        if isinstance(given, _Place):
            self._place = given
        else:
            self._given = given

    def read(self, form: Format, place: Place) -> Request:
        """Makes the request of a signature.

        Raises:
          RequestError: it is malformed, or stands for too much.
        """
        if self._place is not None:
            return form.request(self._arrays(form, self._place, place))
        arrays = (rows_of if self.by_row else columns_of)(self._given, form)
        texts = {
            name: sum(len(text) for text in array if text is not None)
            for name, array in arrays.items()
            if array.dtype == object
        }
        counts = {name: len(array) for name, array in arrays.items()}
        place.admit(column_bytes(form, counts, texts), sent=len(self._data))
        return form.request(arrays)

    def _parts(self) -> Mapping[str, Any]:
        try:
            given = json.loads(self._data)
        except (ValueError, RecursionError) as error:
            raise invalid(f"the body must be JSON: {error}") from None
        if not isinstance(given, dict):
            raise invalid("the body must be a JSON object")
        return given

    def _large_parts(self) -> Mapping[str, Any]:
        body = _Body()
        kernels.library().embedps_check_body(
            self._data, ctypes.c_int64(len(self._data)), ctypes.byref(body)
        )
        if body.wrong_at >= 0:
            raise invalid(
                f"the body must be JSON in UTF-8, but is not from byte {body.wrong_at} on"
            )
        if not body.is_object:
            raise invalid("the body must be a JSON object")
        self._num_commas = body.num_commas
        kinds = ("instances", "inputs", "signature_name")
        parts: dict[str, Any] = {n: p for n in kinds if (p := getattr(body, n)).begin >= 0}
        if "signature_name" in parts:
            name = parts["signature_name"]
            is_short = name.end - name.begin <= _QUOTED_BYTES
            parts["signature_name"] = json.loads(name.of(self._data)) if is_short else None
        return parts

    def _arrays(self, form: Format, where: _Place, place: Place) -> dict[str, Array]:
        sent = len(self._data)
        place.admit(_VALUE_BYTES * (self._num_commas + 1) + sent, sent=sent)
        names = list(form.specs)
        lengths = {tensor_name(name): lengths_name(name) for name in form.lists if self.by_row}
        error = _Error()
        with _columns(self._data, where, self.by_row, form, lengths, error) as found:
            if found is None:
                self._refuse(form, names, error)
            sizes = np.empty([len(names), 3], np.int64)
            kernels.library().embedps_column_sizes(found, ctypes.c_void_p(sizes.ctypes.data))
            there = {name for name, size in zip(names, sizes, strict=True) if size[0]}
            there |= {lengths[name] for name in there if name in lengths}
            form.check_names(there)
            counts = {name: int(size[1]) for name, size in zip(names, sizes, strict=True)}
            texts = {
                name: int(size[2])
                for name, size in zip(names, sizes, strict=True)
                if form.specs[name].dtype == tf.string
            }
            place.admit(column_bytes(form, counts, texts), sent=sent)
            return {
                name: _copy(found, i, form, name, *map(int, sizes[i, 1:]))
                for i, name in enumerate(names)
                if name in there
            }

    def _refuse(self, form: Format, names: list[str], error: _Error) -> NoReturn:
        """Says what is wrong as the reader in Python does, which reads that part again."""
        where, column = error.place, names[error.column] if error.column >= 0 else ""
        is_short = where.end - where.begin <= _QUOTED_BYTES
        if error.fault == _TOO_MANY:
            most = most_values(form, column)
            what = repr(column) if column else '"instances"'
            raise invalid(f"{what} must have at most {most} values but has {error.count}")
        if error.fault == _OTHER_NAMES:
            raise invalid(
                f"each instance must have the columns of the first; {error.count} has not"
            )
        if error.fault == _OTHER_NAME and is_short:
            form.check_names({*form.specs, json.loads(where.of(self._data))})
        if error.fault == _NO_LIST:
            raise invalid(f"{column!r} must be a list" if column else '"instances" must be a list')
        if error.fault == _NO_OBJECT:
            raise invalid(
                '"instances" must be a list of objects with a value per column'
                if self.by_row
                else '"inputs" must be an object with a list per tensor'
            )
        if column and is_short:
            with suppress(ValueError, RecursionError):  # it has more digits than Python reads
                vector_of(column, [json.loads(where.of(self._data))], form)
        shown = self._data[where.begin : min(where.end, where.begin + 40)].decode(errors="replace")
        wanted = f"{column!r} must hold {form.specs[column].dtype.name}" if column else "a name"
        raise invalid(f"{wanted} must be another than {shown}")


@contextmanager
def _columns(
    data: bytes,
    place: _Place,
    by_row: bool,
    form: Format,
    lengths: Mapping[str, str],
    error: _Error,
) -> Iterator[ctypes.c_void_p | None]:
    """Reads columns; they are there in the block."""
    names = list(form.specs)
    table = np.empty([len(names), 6], np.int64)  # JsonColumn
    end = 0
    for i, (name, spec) in enumerate(form.specs.items()):
        end += len(name.encode())
        missing = form.missing.get(name)
        table[i] = (
            end,
            _KINDS[spec.dtype],
            isinstance(missing, int) if spec.dtype == tf.int64 else missing is not None,
            missing if isinstance(missing, int) else 0,
            names.index(lengths[name]) if name in lengths else -1,
            most_values(form, name),
        )
    form_ = _Form("".join(names).encode(), table.ctypes.data, len(names), MAX_ROWS)
    library = kernels.library()
    read = library.embedps_read_columns
    read.restype = ctypes.c_void_p
    pointer = read(
        data,
        ctypes.byref(place),
        ctypes.c_bool(by_row),
        ctypes.byref(form_),
        ctypes.byref(error),
    )
    try:
        yield None if pointer is None else ctypes.c_void_p(pointer)
    finally:
        if pointer is not None:
            library.embedps_free_columns(ctypes.c_void_p(pointer))


def _copy(
    found: ctypes.c_void_p, place: int, form: Format, name: str, count: int, num_bytes: int
) -> Array:
    """Copies a column's values."""
    dtype = form.specs[name].dtype
    is_text = dtype == tf.string
    values = np.empty(count, np.int64 if is_text else dtype.as_numpy_dtype)
    texts = np.empty(num_bytes, np.uint8)
    kernels.library().embedps_copy_values(
        found,
        ctypes.c_int64(place),
        ctypes.c_void_p(values.ctypes.data),
        ctypes.c_void_p(texts.ctypes.data),
    )
    if not is_text:
        return values
    missing = form.missing.get(name)
    filler = missing if isinstance(missing, bytes) else None
    made, begin = np.empty(count, object), 0
    for first in range(0, count, _PART):
        ends = values[first : first + _PART]
        bounds = [begin, *np.where(ends < 0, -1 - ends, ends).tolist()]
        base, begin = bounds[0], bounds[-1]
        data = texts[base:begin].tobytes()
        made[first : first + _PART] = [
            filler if is_null else data[a - base : b - base]
            for a, b, is_null in zip(bounds, bounds[1:], (ends < 0).tolist(), strict=False)
        ]
    return made
