"""An einsum of two tensors by one product is NumPy's; others have no product."""

import numpy as np
import pytest
import tensorflow as tf

from embedps.engine.einsum_products import product_of

SIZES = {"a": 3, "b": 4, "c": 5, "d": 2, "e": 6, "...": 1}
EQUATIONS = (
    "ab,bc->ac", "ab,bc->ca", "ba,cb->ac",
    "abc,cde->abde", "aecd,abcd->acbe", "acbe,aecd->abcd",  # attention
    "a,b->ab", "ab,ab->", "ab,ab->a", "ab,ab->b", "ab,ab->ab", "ab,cd->dbca",
    "abc,bd->ad", "abc,bd->d",  # labels of one input that are summed
)  # fmt: skip


def of(labels: str, rest: tuple[int, ...] = ()) -> np.ndarray:
    shape: list[int] = []
    for label in labels.replace("...", "."):
        shape += rest if label == "." else [SIZES[label]]
    return np.random.default_rng(len(labels)).normal(size=shape).astype(np.float32)


def check(equation: str, *inputs: np.ndarray) -> None:
    made = product_of(equation)
    assert made is not None
    function, specs = made
    found = tf.function(function, input_signature=specs, autograph=False)(*inputs)
    expected = np.einsum(equation, *(x.astype(np.float64) for x in inputs))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("equation", EQUATIONS)
def test_a_product_is_the_einsum(equation: str) -> None:
    left, right = equation.split("->")[0].split(",")
    check(equation, of(left), of(right))


@pytest.mark.parametrize("rest", [(), (7,), (2, 3)])
@pytest.mark.parametrize(
    "equation", ["...a,ab->...b", "ab,...b->a...", "a...b,bc->ac...", "a...,ab->b..."]
)
def test_dots_are_any_number_of_dimensions(equation: str, rest: tuple[int, ...]) -> None:
    left, right = equation.split("->")[0].split(",")
    check(equation, of(left, rest), of(right, rest))


def test_dimensions_of_no_size_give_no_values_or_zeros() -> None:
    check("ab,bc->ac", np.zeros([0, 4], np.float32), of("bc"))
    check("ab,bc->ac", np.zeros([3, 0], np.float32), np.zeros([0, 5], np.float32))
    check("abc,abd->acd", np.zeros([0, 4, 5], np.float32), np.zeros([0, 4, 2], np.float32))


@pytest.mark.parametrize(
    "equation", ["ab->ba", "aab,bc->ac", "ab,bc,cd->ad", "...ab,...bc->...ac", "...a,ab->b"]
)
def test_another_equation_has_none(equation: str) -> None:
    assert product_of(equation) is None
