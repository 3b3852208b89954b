"""The declaration of a recommender: how its model is made, and what it reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from embedps.engine.calibration import Calibration
from embedps.errors import UsageError

if TYPE_CHECKING:  # these import TensorFlow, which a model's flags do not wait for
    import tensorflow as tf

WIRE_DTYPES = ("float32", "bfloat16")


def check_wire_dtype(name: str) -> None:
    """Checks the dtype in which floats are sent.

    Raises:
      UsageError: it is not one of WIRE_DTYPES.
    """
    if name not in WIRE_DTYPES:
        raise UsageError(f"wire_dtype must be one of {', '.join(WIRE_DTYPES)} but got {name}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommender:
    """A recommender: a model, whose features are looked up in tables.

    Attributes:
      build: makes the model. It is called once per process, inside the strategy's scope. The model
        has one `embedps.Embeddings` layer and a loss: it is a `tfrs.Model`, or has its
        `compute_loss(features, training)`, or is a compiled `tf.keras.Model`. It gets a batch as a
        dict of columns; a compiled model predicts the dataset's labels from the others. Losses that
        its layers add are minimized too. Only gradients may update its variables: see
        `network_check`.
      columns: those that the model reads, features and labels too; by default those that its loss
        or a metric depends on, which takes tracing it twice more.
      optimizer: makes the network's optimizer, any of `tf.keras.optimizers`. By default it is the
        one that the model is compiled with, or else the config's `dense_optimizer`.
      row_schedule: makes the schedule of the tables' learning rate over the run's steps, any of
        `tf.keras.optimizers.schedules`. By default it is the rate of the
        tables' optimizers, or else the config's `sparse_learning_rate`.
      missing_id: the id that a null becomes; it has a row like any other id.
      wire_dtype: dtype of rows, the network's matrices and their gradients between workers and
        parameter servers, "float32" or "bfloat16"; both ends keep float32.
      model: name of the module that made it, as --model takes it; other processes make the model
        again by this name. None if only this process has the model.
      config: the instance of that module's class `Config` that `make` got.
      calibration: of its predictions, as `embedps calibrate` fitted it; training has none.
    """

    build: Callable[[], tf.keras.Model]
    columns: tuple[str, ...] | None = None
    optimizer: Callable[[], Any] | None = None
    row_schedule: Callable[[], Any] | None = None
    missing_id: int = -1
    wire_dtype: str = "float32"
    model: str | None = None
    config: Any = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        is_made = not isinstance(self.build, type) and hasattr(self.build, "train_step")
        if is_made or not callable(self.build):
            raise UsageError(
                "a recommender's build must be a function that makes the model but got a "
                f"{type(self.build).__qualname__}: write build=lambda: ..."
            )
        if not -(2**63) <= self.missing_id < 2**63:
            raise UsageError(f"missing_id must be a signed 64-bit number but got {self.missing_id}")
        check_wire_dtype(self.wire_dtype)
