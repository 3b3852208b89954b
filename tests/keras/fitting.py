"""Fits a model in Keras mode and takes the loss of each step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

BATCH_ROWS, RATE = 64, 0.05
READ: dict[str, Any] = {"batch_size": BATCH_ROWS, "unit_rows": BATCH_ROWS, "targets": False}


class Losses(tf.keras.callbacks.Callback):
    """Takes each step's loss: `fit` logs it as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))


def optimizer() -> Any:
    return tf.keras.optimizers.Adagrad(RATE)


def fit_losses(model: tf.keras.Model, data: tf.data.Dataset, **options: Any) -> list[float]:
    losses = Losses()
    model.compile(optimizer())
    model.fit(data, verbose=0, callbacks=[losses], **options)
    return losses.losses
