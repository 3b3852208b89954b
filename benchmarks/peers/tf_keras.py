"""Measures DLRM in plain TensorFlow and Keras, in one process: one Embedding layer per feature."""

from __future__ import annotations

import os
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # TFRS is over tf-keras
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.peers import protocol, tf_files, tf_model


class Keras:
    """Trains with tables that all variants share, and one network per variant."""

    def __init__(self, work: protocol.Work) -> None:
        tf.keras.backend.clear_session()
        self._work = work
        self._layers: list[Any] = []
        self._tables: list[Any] = []
        self._sparse: dict[str, Any] = {}

    def _build(self) -> None:
        work = self._work
        self._layers = [tf.keras.layers.Embedding(c, work.dim) for c in work.cardinalities]
        for layer in self._layers:
            layer.build(())
        self._tables = [layer.embeddings for layer in self._layers]

    def prepare(self, variant: protocol.Variant) -> protocol.Measure:
        if variant.task == "checkpoint":
            return protocol.checkpointer(tf_files.Checkpoints(self._work), variant.kind)
        if variant.task == "input":
            return tf_files.reader(self._work, variant)
        if variant.kind not in self._sparse:
            self._sparse[variant.kind] = tf_model.optimizer(variant.kind)
        if not self._layers:
            self._build()
        sparse = self._sparse[variant.kind]
        data = [
            (tf.constant(n), tf.constant(ids.astype(np.int32)), tf.constant(y[:, None]))
            for n, ids, y in self._work.batches(variant.batch)
        ]
        if variant.task == "lookup":

            @tf.function
            def step(numerics: tf.Tensor, ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
                with tf.GradientTape() as tape:
                    looked = [layer(ids[i]) for i, layer in enumerate(self._layers)]
                    total = tf.add_n([tf.reduce_sum(rows) for rows in looked])
                gradients = tape.gradient(total, self._tables)
                sparse.apply_gradients(zip(gradients, self._tables, strict=True))
                return total

        else:
            network = tf_model.Network(self._work, variant.precision)
            dense = tf_model.optimizer(variant.kind)

            @tf.function
            def step(numerics: tf.Tensor, ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
                with tf.GradientTape() as tape:
                    looked = [layer(ids[i]) for i, layer in enumerate(self._layers)]
                    loss = tf_model.loss_of(labels, network.logits(numerics, looked))
                ours = network.variables
                of_tables, of_network = tape.gradient(loss, (self._tables, ours))
                sparse.apply_gradients(zip(of_tables, self._tables, strict=True))
                dense.apply_gradients(zip(of_network, ours, strict=True))
                return loss

        last = tf.constant(0.0)

        def run(number: int) -> None:
            nonlocal last
            last = step(*data[number % len(data)])

        return protocol.stepper(run, variant.batch, sync=lambda: last.numpy())


if __name__ == "__main__":
    protocol.serve(Keras, ["tensorflow", "tf-keras", "tensorflow-recommenders", "numpy"])
