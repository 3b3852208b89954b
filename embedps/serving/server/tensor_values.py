"""Arrays of a request's TensorProtos, and TensorProtos of answers.

TensorFlow's own decoder allocates what a shape claims. This one takes only what the message holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedps.serving.server.request_error import invalid

Array = npt.NDArray[Any]

_PART = 1 << 14  # values that are made while no other thread runs
_FIELDS = {
    tf.int64: "int64_val",
    tf.float32: "float_val",
    tf.float64: "double_val",
    tf.string: "string_val",
}
_LAYOUTS = {  # bytes of a value (0 of texts), its dtype in NumPy, and its number in TensorFlow
    dtype: (
        0 if dtype == tf.string else dtype.size,
        np.dtype(dtype.as_numpy_dtype).newbyteorder("<"),
        dtype.as_datatype_enum,
    )
    for dtype in _FIELDS
}
_NUMBERS = {  # by NumPy's dtype its number in TensorFlow, and the field of its values
    np.dtype(dtype.as_numpy_dtype): (dtype.as_datatype_enum, _FIELDS[dtype])
    for dtype in (tf.float32, tf.int64)
}


def read_vector(name: str, tensor: Any, dtype: tf.DType, *, most: int) -> Array:
    """Reads a vector, of shape [n] or [n, 1].

    Args:
      dtype: that it must have, int64, float32, float64 or string.
      most: values that it may have.

    Raises:
      RequestError: it is something else.
    """
    wanted_bytes, numpy_dtype, enum = _LAYOUTS[dtype]
    content = tensor.tensor_content if wanted_bytes else b""
    dims = tensor.tensor_shape.dim
    # What clients send: 39 of these per request of a click model.
    if (
        content
        and len(dims) == 1
        and tensor.dtype == enum
        and len(content) == dims[0].size * wanted_bytes
        and dims[0].size <= most
        and not tensor.tensor_shape.unknown_rank
    ):
        return np.frombuffer(content, numpy_dtype)
    if tensor.dtype != dtype.as_datatype_enum:
        raise invalid(f"tensor {name!r} must be {dtype.name} but is {_dtype_name(tensor.dtype)}")
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    known = not tensor.tensor_shape.unknown_rank and all(size >= 0 for size in shape)
    if not known or not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
        raise invalid(f"tensor {name!r} must be of shape [rows] but is of shape {shape}")
    size = shape[0]
    if size > most:
        raise invalid(f"tensor {name!r} must have at most {most} values but has {size}")
    if content:
        if len(content) != size * numpy_dtype.itemsize:
            raise invalid(
                f"tensor {name!r} of {size} values must have {size * numpy_dtype.itemsize} bytes "
                f"of tensor_content but has {len(content)}"
            )
        return np.frombuffer(content, numpy_dtype)
    values = _values(getattr(tensor, _FIELDS[dtype]), numpy_dtype)
    if len(values) == size:
        return values
    if len(values) == 1:  # a constant tensor, as TensorFlow abbreviates it
        return np.repeat(values, size)
    raise invalid(f"tensor {name!r} of shape {shape} has {len(values)} values")


def claimed_values(tensor: Any) -> int:
    """Gives how many values a TensorProto of a vector says that it has."""
    dims = tensor.tensor_shape.dim
    return max(dims[0].size, 0) if dims else 0


def claimed_text_bytes(tensor: Any) -> int:
    """Gives how many bytes the texts of a TensorProto have, or more."""
    is_one = len(tensor.string_val) == 1
    return int(tensor.ByteSize()) * (max(claimed_values(tensor), 1) if is_one else 1)


def _values(field: Any, dtype: np.dtype[Any]) -> Array:
    """Copies a repeated field; other threads may run between two parts."""
    made = np.empty(len(field), dtype)
    for first in range(0, len(field), _PART):
        part = field[first : first + _PART]
        made[first : first + len(part)] = part
    return made


def parts_of(array: Array) -> Iterator[Array]:
    """Gives parts of a vector; other threads may run between two of them."""
    for first in range(0, len(array), _PART):
        yield array[first : first + _PART]


def fill(tensor: Any, array: Array) -> None:
    """Sets an empty TensorProto to an array, as `tf.make_tensor_proto` does."""
    numbers = _NUMBERS.get(array.dtype)
    if numbers is not None:  # a tenth of the time
        tensor.dtype, values = numbers
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        if array.size > 1:
            tensor.tensor_content = array.tobytes()
        else:
            getattr(tensor, values).extend(array.ravel().tolist())
        return
    if array.dtype == object:
        tensor.dtype = tf.string.as_datatype_enum
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        for part in parts_of(array.ravel()):
            tensor.string_val.extend(part.tolist())
        return
    tensor.MergeFromString(tf.make_tensor_proto(array).SerializeToString())


def _dtype_name(number: int) -> str:
    try:
        return str(tf.dtypes.as_dtype(number).name)
    except TypeError:
        return f"of dtype number {number}"
