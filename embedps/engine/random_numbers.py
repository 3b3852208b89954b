"""Controls the random numbers that a network draws in training, such as dropout masks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf


@contextmanager
def unseeded() -> Iterator[None]:
    """Makes random ops without a seed of their own draw differently in each process and run.

    With TensorFlow's global seed, every worker would draw the same dropout masks.
    """
    graph = tf.compat.v1.get_default_graph()
    before, graph.seed = graph.seed, None
    try:
        yield
    finally:
        graph.seed = before


def reseed_generators(network: tf.keras.Model, seed: int, step: int) -> None:
    """Reseeds the generators of a resumed network, so that it does not repeat earlier numbers.

    Args:
      network: built; its generators and TensorFlow's global seed are set.
      step: the step from which the run resumes.
    """
    seeds = np.random.SeedSequence([seed, step])
    tf.random.set_seed(int(seeds.generate_state(1)[0]))
    for layer in (network, *network.submodules):
        for value in vars(layer).values():
            generator = getattr(value, "_generator", value)  # Keras wraps a layer's generator
            if isinstance(generator, tf.random.Generator):
                generator.reset_from_seed(int(seeds.spawn(1)[0].generate_state(1)[0]))
