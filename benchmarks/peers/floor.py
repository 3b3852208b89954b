"""Measures the floor of training: the network's products alone, and its rows moved by memcpy.

Each dense layer multiplies three times: forward, for its weights' gradient and for its input's,
which the first layer of the bottom network does not need. The products are TensorFlow's by oneDNN,
one after another, on all cores. Each example's rows are copied once out of memory and their
gradients once into it. Biases, activations, interactions, the loss, optimizers, ids and input are
left out: they cost something in every system, and nothing here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.peers import protocol

_TURNS = 16  # batches of rows, so that a processor's cache does not hold them
_MIN_STEPS = 2


class Layer(NamedTuple):
    """The kernel of a dense layer: it maps `inputs` numbers to `outputs`."""

    inputs: int
    outputs: int


class Network(Protocol):
    """The fields of a workload that the products depend on."""

    @property
    def bottom_mlp(self) -> Sequence[int]: ...
    @property
    def top_mlp(self) -> Sequence[int]: ...
    @property
    def cardinalities(self) -> Sequence[int]: ...
    @property
    def dim(self) -> int: ...
    @property
    def num_numerics(self) -> int: ...


def networks(work: Network) -> tuple[list[Layer], list[Layer]]:
    """Gives the layers of the bottom and the top network."""
    interactions = protocol.num_interactions(len(work.cardinalities), work.dim)
    return _layers(work.num_numerics, work.bottom_mlp), _layers(interactions, work.top_mlp)


def multiply_adds(work: Network) -> int:
    """Counts the multiply-adds of the layers per example, forward and backward."""
    bottom, top = networks(work)
    return 3 * sum(n * m for n, m in (*bottom, *top)) - bottom[0].inputs * bottom[0].outputs


def _layers(inputs: int, widths: Sequence[int]) -> list[Layer]:
    return [Layer(*each) for each in zip((inputs, *widths), widths, strict=False)]


class Rows:
    """Rows of batches in memory; a step copies those of one batch out and its gradients in."""

    def __init__(self, values: int) -> None:
        """Takes the float32 values of a batch's rows."""
        self._cores = len(os.sched_getaffinity(0))
        self._table = self._parts(np.ones([_TURNS, values], np.float32))
        self._rows = self._parts(np.zeros([1, values], np.float32))
        self._threads = ThreadPoolExecutor(self._cores)

    def move(self, step: int) -> None:
        """Moves the rows of a step and their gradients."""
        turn = step % _TURNS

        def copy(core: int) -> None:
            table, rows = self._table[core][turn], self._rows[core][0]
            np.copyto(rows, table)
            np.copyto(table, rows)

        list(self._threads.map(copy, range(self._cores)))

    def _parts(self, matrix: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
        return np.array_split(matrix, self._cores, axis=1)


def make_products(work: Network, *, precision: str, batch: int) -> Any:
    """Makes a function that computes the products of a step.

    Args:
      precision: the dtype of the matrices, float32 or bfloat16.
      batch: examples per step.

    Returns:
      a concrete function. It gives all products but those that others are made of: those of both
      networks forward, then the gradients of their weights and inputs.
    """
    import tensorflow as tf  # after the choice of oneDNN

    def drawn(rows: int, columns: int) -> Any:
        # Values stay of one size from layer to layer: denormal numbers are slow.
        return tf.cast(tf.random.normal([rows, columns], stddev=rows**-0.5), precision)

    both = networks(work)
    kernels = [[tf.Variable(drawn(*layer)) for layer in layers] for layers in both]
    inputs = [tf.Variable(drawn(batch, layers[0].inputs)) for layers in both]
    upstream = [tf.Variable(drawn(batch, layers[-1].outputs)) for layers in both]

    @tf.function
    def products() -> list[Any]:
        made = []
        for is_top, (x, gradient, weights) in enumerate(
            zip(inputs, upstream, kernels, strict=True)
        ):
            activations = [tf.convert_to_tensor(x)]
            for kernel in weights:
                activations.append(tf.matmul(activations[-1], kernel))
            made.append(activations.pop())
            gradient = tf.convert_to_tensor(gradient)
            for place in reversed(range(len(weights))):
                made.append(tf.matmul(activations[place], gradient, transpose_a=True))
                if is_top or place:
                    gradient = tf.matmul(gradient, weights[place], transpose_b=True)
            if is_top:
                made.append(gradient)
        return made

    return products.get_concrete_function()


class Floor:
    """Multiplies and copies."""

    def __init__(self, work: protocol.Work) -> None:
        self._work = work

    def prepare(self, variant: protocol.Variant) -> protocol.Measure:
        work, batch = self._work, variant.batch
        if variant.task != "train":
            raise protocol.UnsupportedError("only training has a floor")
        products = make_products(work, precision=variant.precision, batch=batch)
        rows = Rows(batch * len(work.cardinalities) * work.dim)
        steps = 0

        def measure(secs: float) -> dict[str, float]:
            nonlocal steps
            first, began, multiplying = steps, time.perf_counter(), 0.0
            while steps < first + _MIN_STEPS or time.perf_counter() - began < secs:
                rows.move(steps)
                multiplied = time.perf_counter()
                products()
                multiplying += time.perf_counter() - multiplied
                steps += 1
            examples = (steps - first) * batch
            return {
                "examples": examples,
                "secs": time.perf_counter() - began,
                "giga_multiply_adds": examples * multiply_adds(work) / multiplying / 1e9,
            }

        return measure


if __name__ == "__main__":
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # TensorFlow's default depends on the processor
    protocol.serve(Floor, ["tensorflow", "numpy"])
