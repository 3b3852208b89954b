"""Says that Keras' callbacks which set a learning rate do not set that of embedding rows."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from embedps.console.lines import say


def watch() -> None:
    """Makes these callbacks print a line when they get a model whose rows keep their rate."""
    for kind in (tf.keras.callbacks.LearningRateScheduler, tf.keras.callbacks.ReduceLROnPlateau):
        if "set_model" in vars(kind):
            continue

        def set_model(self: Any, model: tf.keras.Model, before: Any = kind.set_model) -> None:
            before(self, model)
            for rate in _constant_rates(model):
                say(
                    f"embedps: {type(self).__name__} sets the rate of the model's optimizer; the "
                    f"embedding rows keep theirs, {rate:g}: give embedps.Embeddings a schedule, "
                    "learning_rate=tf.keras.optimizers.schedules...",
                    file=sys.stderr,
                )

        kind.set_model = set_model


def _constant_rates(model: tf.keras.Model) -> list[float]:
    """Gives the rates of the model's Embeddings layers that have no schedule."""
    layers = [layer for layer in (model, *model.submodules) if hasattr(layer, "table_state")]
    return [rate for layer in layers if not callable(rate := layer._learning_rate)]
