"""A variable that stands for a layer's tables, so that whatever saves weights has them."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.trackable.base import VARIABLE_VALUE_KEY

from embedps.layers.own_tables import OwnTables, mistake
from embedps.tables.image import Image


class TableState(resource_variable_ops.ResourceVariable):
    """Reads and replaces the tables of an Embeddings layer in Keras mode as uint8 [bytes].

    It is a weight that is not trained. `numpy` gives all rows, their optimizer slots, the counters
    of admission and the step; `assign` takes them. So do Keras' and TensorFlow's checkpoints and
    `get_weights`. No bytes are tables without rows. As a tensor it is empty.
    """

    def __init__(self, layer: Any) -> None:
        """Takes the layer, of which `own` makes the tables and `_own` has them once made."""
        with tf.init_scope(), tf.device("/device:CPU:0"):
            super().__init__(
                np.zeros([0], np.uint8),
                trainable=False,
                shape=[None],
                name="embedding_tables",
                distribute_strategy=layer._strategy,
            )
        self._layer = weakref.ref(layer)

    def numpy(self) -> Image:
        """Reads the tables."""
        if not tf.executing_eagerly():
            raise mistake("embedding tables can be read outside of a tf.function only")
        layer = self._layer()
        own: OwnTables | None = None if layer is None or layer.is_served else layer._own
        return np.zeros([0], np.uint8) if own is None else own.read_image()

    def assign(
        self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> TableState:
        """Replaces the tables by what `numpy` gave.

        Raises:
          DimMismatchError: it is of other tables.
          CorruptCheckpointError: it is not what `numpy` gave.
        """
        if not tf.executing_eagerly():
            raise mistake("embedding tables can be replaced outside of a tf.function only")
        layer = self._layer()
        if layer is not None and (np.size(value) or layer._own is not None):
            layer.own.write_image(np.asarray(value, np.uint8))
        return self

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        with tf.device("/device:CPU:0"):
            return {VARIABLE_VALUE_KEY: tf.constant(self.numpy())}

    def _restore_from_tensors(self, restored_tensors: Any) -> TableState:
        image = restored_tensors[VARIABLE_VALUE_KEY]
        if tf.executing_eagerly():
            return self.assign(np.asarray(image))
        # With variables on servers too, TensorFlow restores in a graph.
        with tf.device("/device:CPU:0"):
            tf.py_function(self._assign_there, [image], [])
        return self

    def _assign_there(self, image: tf.Tensor) -> None:
        self.assign(image.numpy())
