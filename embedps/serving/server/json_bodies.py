"""The JSON of REST's requests and answers, as TensorFlow Serving has it."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from google.protobuf import json_format

from embedps.features.text_values import MAX_UNSIGNED_ID
from embedps.serving.inputs import lengths_name, tensor_name
from embedps.serving.server.request_error import invalid
from embedps.serving.server.request_size import most_values
from embedps.serving.server.requests import Format
from embedps.serving.server.tensor_values import Array

_DIGITS = re.compile(r"-?[0-9]{1,20}")


def body_of(records: pa.Table) -> str:
    """Makes the body of a request for records, by row; a missing number is null."""
    rows = [
        {
            tensor_name(name): None if isinstance(x, float) and math.isnan(x) else x
            for name, x in row.items()
        }
        for row in records.to_pylist()
    ]
    return json.dumps({"instances": rows})


def columns_of(given: Any, form: Format) -> dict[str, Array]:
    """Makes the arrays of a request by column."""
    if len(form.specs) == 1 and not isinstance(given, dict):
        given = dict.fromkeys(form.specs, given)
    if not isinstance(given, dict):
        raise invalid('"inputs" must be an object with a list per tensor')
    form.check_names(given.keys())
    return {name: vector_of(name, values, form) for name, values in given.items()}


def rows_of(given: Any, form: Format) -> dict[str, Array]:
    """Makes the arrays of a request by row."""
    if not isinstance(given, list):
        raise invalid('"instances" must be a list')
    if len(form.specs) == 1:  # then each may be the value itself
        (only,) = form.specs
        given = [row if isinstance(row, dict) and only in row else {only: row} for row in given]
    if not all(isinstance(row, dict) for row in given):
        raise invalid('"instances" must be a list of objects with a value per column')
    names = given[0].keys() if given else form.specs.keys() - map(lengths_name, form.lists)
    for place, row in enumerate(given):
        if row.keys() != names:
            raise invalid(f"each instance must have the columns of the first; {place} has not")
    lists = {tensor_name(column): lengths_name(column) for column in form.lists}
    if twice := names & {lists[name] for name in names if name in lists}:
        raise invalid(f"an instance has its lists, and so must not have {min(twice)!r}")
    form.check_names(names | {lists[name] for name in names if name in lists})
    arrays = {}
    for name in names:
        values = [row[name] for row in given]
        if name in lists:
            if not all(isinstance(value, list) for value in values):
                raise invalid(f"{name!r} must be a list in each instance")
            arrays[lists[name]] = np.array([len(value) for value in values], np.int64)
            values = [item for value in values for item in value]
        arrays[name] = vector_of(name, values, form)
    return arrays


def vector_of(name: str, values: Any, form: Format) -> Array:
    """Makes a vector of JSON's values; of numbers, null is a missing one."""
    spec = form.specs[name]
    if not isinstance(values, list):
        raise invalid(f"{name!r} must be a list")
    most = most_values(form, name)
    if len(values) > most:
        raise invalid(f"{name!r} must have at most {most} values but has {len(values)}")
    if spec.dtype == tf.string:
        texts = [_bytes(name, value, form.missing.get(name)) for value in values]
        return np.array(texts, object)
    if not spec.dtype.is_floating:
        if all(type(value) is int for value in values):  # the usual ones: a tenth of the time
            with contextlib.suppress(OverflowError):
                return np.array(values, np.int64)
        missing = form.missing.get(name)
        return np.array([_integer(name, value, missing) for value in values], np.int64)
    allowed = (int, float, type(None))
    if wrong := {type(value).__name__ for value in values if type(value) not in allowed}:
        raise invalid(f"{name!r} must hold numbers of {spec.dtype.name} but has {min(wrong)}")
    try:
        with np.errstate(over="ignore"):  # it is infinite
            return np.array(values, spec.dtype.as_numpy_dtype)
    except (OverflowError, TypeError) as error:
        raise invalid(f"{name!r} must hold numbers of {spec.dtype.name}: {error}") from None


def _integer(name: str, value: Any, missing: int | bytes | None) -> int:
    """Reads an int64. From 2^63 to 2^64 - 3, it is the id of the same bits, as a dataset has it.

    Args:
      value: a number, its digits as a text (a program of JavaScript has 53 bits of a number), or
        null.
      missing: what null means; None if it has no meaning.
    """
    if value is None and isinstance(missing, int):
        return missing
    if type(value) is str and _DIGITS.fullmatch(value):
        value = int(value)
    if type(value) is not int:
        raise invalid(
            f"{name!r} must hold whole numbers, or their digits as texts, but has "
            f"{json.dumps(value)[:40]}" + ("" if missing is None else "; null is a missing id")
        )
    if not -(1 << 63) <= value < 1 << 64 or (missing is None and value >> 63 > 0):
        raise invalid(f"{name!r} must hold numbers of 64 bits but has {value}")
    if value > MAX_UNSIGNED_ID:
        raise invalid(
            f"{name!r} must hold ids up to {MAX_UNSIGNED_ID}, as the two above mean missing and "
            f"rare, but has {value}"
        )
    return value - (value >> 63 << 64) if value > 0 else value


def _bytes(name: str, value: Any, missing: int | bytes | None) -> bytes | None:
    """Reads a text, or bytes as TensorFlow Serving has them: {"b64": TEXT}; null is missing."""
    if value is None and missing is not None:
        return missing if isinstance(missing, bytes) else None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"b64"}:
            text = value["b64"]
            if len(text) % 4 == 0 and not text.endswith("==="):  # Python takes more of them
                return base64.b64decode(text, validate=True)
    except (AttributeError, TypeError, ValueError):
        pass
    raise invalid(f'{name!r} must hold texts, or bytes as {{"b64": TEXT}} in Base64')


def status_json(response: Any) -> Mapping[str, Sequence[Any]]:
    """Gives a status as TensorFlow Serving writes it: with the code of no error, too."""
    states = response.model_version_status
    return {
        "model_version_status": [
            {
                "version": str(each.version),
                "state": _name(each, "state"),
                "status": {
                    "error_code": _name(each.status, "error_code"),
                    "error_message": each.status.error_message,
                },
            }
            for each in states
        ]
    }


def _name(message: Any, field: str) -> str:
    values = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    return str(values[getattr(message, field)].name)


def message_json(message: Any) -> Any:
    """Gives a message with its own names of fields."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def json_bytes(value: Any) -> bytes:
    """Writes JSON; bytes become texts."""
    return json.dumps(value, default=text_of).encode()


def text_of(value: bytes) -> str:
    """Gives an item's identifier, if it is a text, for JSON."""
    return value.decode(errors="replace")
