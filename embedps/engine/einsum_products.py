"""Einsums of two tensors as transposes and one product of matrices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import tensorflow as tf

_REST: Final = "."  # a label for the dimensions that an equation calls "..."
_EQUATION: Final = re.compile(r"([a-zA-Z.]*),([a-zA-Z.]*)->([a-zA-Z.]*)")


class _Equation(NamedTuple):
    """The labels of two inputs and of what they give."""

    left: str
    right: str
    output: str


def product_of(equation: str) -> tuple[Callable[..., tf.Tensor], Sequence[Any]] | None:
    """Makes a function that computes an einsum of two tensors by one product.

    Args:
      equation: as TensorFlow's op has it, such as "abc,cd->abd".

    Returns:
      The function and the specs of its two tensors, float32. None if the equation has one input,
      or more, repeats a label in one, or has "..." in both or not in what they give.
    """
    found = _EQUATION.fullmatch(equation.replace(" ", "").replace("...", _REST))
    if found is None:
        return None
    labels = _Equation(*found.groups())
    given = labels.left + labels.right
    if (
        any(len(set(each)) < len(each) for each in labels)
        or given.count(_REST) != labels.output.count(_REST)
        or not set(labels.output) <= set(given)
    ):
        return None
    specs = [
        tf.TensorSpec(None if _REST in each else [None] * len(each), tf.float32)
        for each in (labels.left, labels.right)
    ]

    def product(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        return _product(labels, left, right)

    return product, specs


def _product(labels: _Equation, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    sizes: dict[str, tf.Tensor] = {}  # of each label, int32 [1]; of "...", [its rank]
    x, of_x = _summed(left, labels.left, labels.right + labels.output, sizes)
    y, of_y = _summed(right, labels.right, labels.left + labels.output, sizes)
    batch = [n for n in of_x if n in of_y and n in labels.output]
    inner = [n for n in of_x if n in of_y and n not in labels.output]
    rows, columns = [n for n in of_x if n not in of_y], [n for n in of_y if n not in of_x]
    found = tf.matmul(
        _matrices(x, of_x, (batch, rows, inner), sizes),
        _matrices(y, of_y, (batch, inner, columns), sizes),
    )
    have = [*batch, *rows, *columns]
    found = tf.reshape(found, _shape(_size(n, sizes) for n in have))
    found = _ordered(found, have, labels.output)
    if _REST not in labels.output:
        return found
    return tf.reshape(found, _shape(sizes[n] for n in labels.output))


def _summed(
    x: tf.Tensor, labels: str, others: str, sizes: dict[str, tf.Tensor]
) -> tuple[tf.Tensor, list[str]]:
    """Notes sizes, makes one dimension of "...", and sums over the labels that `others` lack."""
    shape = tf.shape(x)
    before, _, after = labels.partition(_REST)
    sizes |= {n: shape[i : i + 1] for i, n in enumerate(before)}
    if len(before) < len(labels):
        end = tf.rank(x) - len(after)
        sizes |= {n: shape[end + i : end + i + 1] for i, n in enumerate(after)}
        sizes[_REST] = shape[len(before) : end]
        x = tf.reshape(x, _shape(_size(n, sizes) for n in labels))
    alone = [i for i, n in enumerate(labels) if n not in others]
    return (tf.reduce_sum(x, alone) if alone else x), [n for n in labels if n in others]


def _size(label: str, sizes: dict[str, tf.Tensor]) -> tf.Tensor:
    """Gives the size of a dimension, int32 [1]."""
    return tf.reduce_prod(sizes[label], keepdims=True) if label == _REST else sizes[label]


def _shape(sizes: Iterable[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.zeros([0], tf.int32), *sizes], 0)


def _ordered(x: tf.Tensor, have: Sequence[str], want: Sequence[str]) -> tf.Tensor:
    order = [have.index(n) for n in want]
    return x if order == sorted(order) else tf.transpose(x, order)


def _matrices(
    x: tf.Tensor,
    labels: Sequence[str],
    groups: tuple[list[str], list[str], list[str]],
    sizes: dict[str, tf.Tensor],
) -> tf.Tensor:
    """Makes [batch, rows, columns] of groups of labels, without a batch that has none."""
    x = _ordered(x, labels, [n for group in groups for n in group])
    kept = groups if groups[0] else groups[1:]
    products = (_shape(_size(n, sizes) for n in group) for group in kept)
    return tf.reshape(x, _shape(tf.reduce_prod(each, keepdims=True) for each in products))
