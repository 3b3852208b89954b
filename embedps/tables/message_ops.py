"""Wraps the ops that put several tensors into one message to another task."""

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from embedps import kernels


def pack(parts: Sequence[tf.Tensor], wire_dtypes: Sequence[tf.DType] | None = None) -> tf.Tensor:
    """Packs tensors into one. Each tensor that is sent to another task costs an RPC.

    Args:
      parts: float32, bfloat16, int32 or int64 of any shapes.
      wire_dtypes: the dtype to send each part as, by default its own. A float32 may be sent as
        bfloat16, rounded to the nearest.

    Returns:
      uint8 [n].
    """
    types = [part.dtype for part in parts]
    return kernels.load().embedps_pack(parts=list(parts), wire_types=list(wire_dtypes or types))


def unpack(message: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Returns the parts of a message of `pack`, in place; widens what was sent as bfloat16.

    Args:
      message: uint8 [n].
      specs: dtype and shape of each part, as it was packed.

    Raises:
      tf.errors.InvalidArgumentError: the message has other parts, or is no message.
    """
    return list(
        kernels.load().embedps_unpack(
            message=message, types=[s.dtype for s in specs], shapes=[s.shape for s in specs]
        )
    )


def send(parts: Sequence[tf.Tensor | None], to: str | None, *, at: str | None = None) -> list[Any]:
    """Sends tensors to another device in one message.

    Args:
      parts: as `pack` takes them, or None.
      to: the device; None is the current one.
      at: where the parts are; None is the current device.

    Returns:
      The tensors there, and None where a part is.
    """
    sent = [part for part in parts if part is not None]
    with contextlib.nullcontext() if at is None else tf.device(at):
        message = pack(sent)
    with contextlib.nullcontext() if to is None else tf.device(to):
        there = iter(unpack(message, [tf.TensorSpec(part.shape, part.dtype) for part in sent]))
        return [None if part is None else next(there) for part in parts]
