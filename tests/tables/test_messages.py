"""Messages that pack several tensors to send them between a worker and a server."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.tables import message_ops

DTYPES = (tf.float32, tf.bfloat16, tf.int32, tf.int64)


def spec_of(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def bits(tensor: tf.Tensor) -> bytes:
    return tensor.numpy().tobytes()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 2**32 - 1),
)
def test_parts_arrive_bit_by_bit(shapes, seed):
    rng = np.random.default_rng(seed)
    parts = [tf.cast(tf.constant(rng.normal(size=s) * 1e4), dtype) for dtype, s in shapes]
    arrived = message_ops.unpack(message_ops.pack(parts), [spec_of(p) for p in parts])
    for part, twin in zip(arrived, parts, strict=True):
        assert (part.dtype, part.shape) == (twin.dtype, twin.shape)
        assert bits(part) == bits(twin)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000, 4096])
def test_float32_that_is_sent_as_bfloat16_equals_a_cast(size):
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3.4e38, 1.00390625], np.float32)
    values = np.resize(
        np.concatenate([special, np.random.default_rng(0).normal(size=size)]), size
    ).astype(np.float32)
    part = tf.constant(values)
    first, second = message_ops.unpack(
        message_ops.pack([tf.constant(7, tf.int64), part], [tf.int64, tf.bfloat16]),
        [tf.TensorSpec([], tf.int64), tf.TensorSpec([None])],
    )
    assert first.numpy() == 7
    np.testing.assert_array_equal(second, tf.cast(tf.cast(part, tf.bfloat16), tf.float32))


def test_parts_of_an_unaligned_message_are_copied():
    parts = [tf.range(5, dtype=tf.int64), tf.constant([[1.5, 2.5]])]
    message = tf.concat([tf.zeros([3], tf.uint8), message_ops.pack(parts)], axis=0)[3:]
    for part, twin in zip(
        message_ops.unpack(message, [spec_of(p) for p in parts]), parts, strict=True
    ):
        np.testing.assert_array_equal(part, twin)


PARTS = (tf.constant([1.0, 2.0]), tf.constant([3, 4, 5], tf.int64))
SPECS = tuple(spec_of(p) for p in PARTS)


def test_message_cut_anywhere_is_refused():
    message = message_ops.pack(PARTS)
    for end in range(message.shape[0]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="EmbedpsUnpack: a message of"):
            message_ops.unpack(message[:end], SPECS)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must end at"):
        message_ops.unpack(tf.concat([message, [0]], axis=0), SPECS)


@pytest.mark.parametrize(
    ("word", "value", "match"),
    [
        (0, 3, "must have 2 parts but has 3"),
        (1, 99, "dtype 99 where it must be float"),
        (1, 2**40, "where it must be float"),
        (2, 9, "of rank 9"),
        (2, -1, "of rank -1"),
        (3, 3, "shape .3. where it must be"),
        (3, -2, "with a dimension of -2"),
        (6, 2**61, "where it must be"),
    ],
)
def test_message_with_another_header_is_refused(word, value, match):
    words = np.frombuffer(bits(message_ops.pack(PARTS)), np.uint8).copy()
    words[8 * word : 8 * word + 8] = np.frombuffer(np.int64(value).tobytes(), np.uint8)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?i){match}"):
        message_ops.unpack(tf.constant(words), SPECS)


def test_dimension_that_no_message_can_hold_is_refused():
    words = np.frombuffer(bits(message_ops.pack(PARTS)), np.uint8).copy()
    words[48:56] = np.frombuffer(np.int64(2**61).tobytes(), np.uint8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="ends within its parts"):
        message_ops.unpack(tf.constant(words), [SPECS[0], tf.TensorSpec([None], tf.int64)])


@pytest.mark.parametrize("wire", [[tf.int32, tf.int64], [tf.float32, tf.int32], [tf.float32]])
def test_dtype_that_a_part_cannot_be_sent_as_is_refused(wire):
    with pytest.raises(tf.errors.InvalidArgumentError, match="EmbedpsPack"):
        message_ops.pack(PARTS, wire)
