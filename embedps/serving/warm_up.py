"""Requests that TensorFlow Serving makes before it serves a model, so that no user waits.

The file `assets.extra/tf_serving_warmup_requests` is a TFRecord of PredictionLog. TensorFlow does
not bring that message, so its few fields are encoded here (tensorflow_serving/apis:
prediction_log.proto, predict.proto, model.proto).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

FILE_NAME = "tf_serving_warmup_requests"
# Numbers of fields.
_LOG_PREDICT, _PREDICT_REQUEST = 6, 1
_REQUEST_MODEL, _REQUEST_INPUTS = 1, 2
_MODEL_SIGNATURE = 3
_ENTRY_KEY, _ENTRY_VALUE = 1, 2


class WarmUpRequest(NamedTuple):
    """A request of a signature: its tensors by name."""

    signature: str
    tensors: Mapping[str, Any]


def write_requests(path: Path, requests: Iterable[WarmUpRequest]) -> None:
    """Writes the file of requests."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for request in requests:
            writer.write(prediction_log(request))


def prediction_log(request: WarmUpRequest) -> bytes:
    """Encodes a request as a PredictionLog."""
    model = _bytes_field(_MODEL_SIGNATURE, request.signature.encode())
    encoded = _bytes_field(_REQUEST_MODEL, model)
    for name, value in request.tensors.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        entry = _bytes_field(_ENTRY_KEY, name.encode()) + _bytes_field(_ENTRY_VALUE, tensor)
        encoded += _bytes_field(_REQUEST_INPUTS, entry)
    return _bytes_field(_LOG_PREDICT, _bytes_field(_PREDICT_REQUEST, encoded))


def _bytes_field(number: int, content: bytes) -> bytes:
    """Encodes a field of a text, bytes or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
