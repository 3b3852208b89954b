"""The paced DLRM takes its time in training, and computes what DLRM computes."""

import functools

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.paced_dlrm import PacedDLRM, sleep
from embedps.data.unit_reader import NUMERICS
from embedps.layers.embeddings import Embeddings
from embedps.models.networks.dlrm import DLRM
from embedps.tables import FeatureSpec, TableSpec


def test_a_sleep_is_half_before_its_element_and_half_before_the_end():
    traced = tf.compat.v1.wrap_function(lambda: sleep(tf.constant(30_000)), [])
    assert traced().numpy() == 0
    (slow,) = [op for op in traced.graph.get_operations() if op.type == "SleepDataset"]
    assert traced.prune([], slow.inputs[1])().numpy() == 15_000


@pytest.mark.parametrize("given", [False, True])
def test_a_paced_step_has_the_bits_of_dlrm(given):
    """On a cluster, a worker is given tensors that its layers read instead of variables."""
    table = TableSpec(name="C1", embedding_dim=8)
    batch = {
        NUMERICS: tf.random.stateless_uniform([16, 3], [1, 2]),
        "C1": tf.range(16, dtype=tf.int64) % 5,
        "label": tf.cast(tf.range(16) % 3 == 0, tf.float32),
    }
    found = []
    paced = functools.partial(PacedDLRM, pace_ms=300.0, first_pace_ms=300.0)
    for make in (DLRM, paced):
        tf.keras.utils.set_random_seed(7)
        model = make(
            Embeddings([FeatureSpec(name="C1", table=table)]),
            label="label",
            embedding_dim=8,
            bottom_mlp=(16,),
            top_mlp=(16,),
        )

        model.compute_loss(batch)  # makes the variables

        @tf.function
        def step(model=model):
            weights = model.trainable_variables
            if given:
                weights = [tf.identity(v) for v in weights]
            with tf.GradientTape() as tape:
                tape.watch(weights)
                if given:
                    for variable, value in zip(model.trainable_variables, weights, strict=True):
                        variable._cached_value = value
                try:
                    loss = model.compute_loss(batch, training=True)
                finally:
                    for variable in model.trainable_variables:
                        variable._cached_value = None
            return loss, tape.gradient(loss, weights)

        found.append([value.numpy() for value in tf.nest.flatten(step())])
        graph = step.get_concrete_function().graph.as_graph_def()
        every = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
        assert any(node.op == "SleepDataset" for node in every) == (make is paced)
    assert len(found[0]) > 8
    for plain, slept in zip(*found, strict=True):
        np.testing.assert_array_equal(plain, slept)
