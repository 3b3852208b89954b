"""Checks a network's interface: the arguments of its call, and the logits that it returns."""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf

from embedps.errors import UsageError


def check_network(network: Any) -> None:
    """Checks what `Recommender.build` returned.

    Raises:
      UsageError: it is not a Keras model, or its call takes other arguments.
    """
    if not isinstance(network, tf.keras.layers.Layer):
        kind = type(network)
        raise UsageError(
            "a recommender's build must return a tf.keras.Model (Keras 2) but returned a "
            f"{kind.__module__}.{kind.__qualname__}"
        )
    call = inspect.signature(network.call)
    try:
        mode = {"training": True} if "training" in call.parameters else {}
        fits = "mask" not in call.bind(None, None, **mode).arguments
    except TypeError:
        fits = False
    if not fits:
        raise UsageError(
            "the network's call must take (numerics, embeddings) but that of "
            f"{type(network).__name__} takes {call}: make it a subclass of tf.keras.Model"
        )


def check_logits(logits: Any, *, batch_rows: int) -> None:
    """Checks a network's output for a batch.

    Raises:
      UsageError: it is not float32 [batch] or [batch, 1], or not finite.
    """
    must = "the network must return its logits, float32 [batch] or [batch, 1], but returned"
    if not isinstance(logits, tf.Tensor):
        raise UsageError(f"{must} {'None' if logits is None else f'a {type(logits).__name__}'}")
    if logits.dtype != tf.float32:
        raise UsageError(f"{must} {logits.dtype.name}: end its call with tf.cast(x, tf.float32)")
    if logits.shape.as_list() not in ([batch_rows], [batch_rows, 1]):
        raise UsageError(f"{must} {logits.shape.as_list()} for a batch of {batch_rows}")
    if not bool(tf.reduce_all(tf.math.is_finite(logits))):
        raise UsageError(
            f"{must} {logits.numpy().ravel().tolist()} for numerics of 1 and embeddings of 0.01, "
            "which is not finite"
        )
