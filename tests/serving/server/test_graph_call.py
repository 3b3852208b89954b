"""One thread and several give the same; a graph with a loop is run by several."""

import numpy as np
import pytest
import tensorflow as tf

from embedps.serving.server.graph_call import GraphCall

SIGNATURE = [tf.TensorSpec([None, 8], tf.float32)]


@tf.function(input_signature=SIGNATURE)
def straight(rows: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(rows @ tf.transpose(rows))


@tf.function(input_signature=SIGNATURE)
def looping(rows: tf.Tensor) -> tf.Tensor:
    total = tf.zeros([8])
    for row in rows:
        total = total * 0.5 + row
    return total


def test_any_graph_is_called_with_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for function, may_run_alone in ((straight, True), (looping, False)):
        call = GraphCall(function.get_concrete_function(), [np.zeros([1, 8], np.float32)])
        assert call._may_run_alone == may_run_alone
        for rows in (1, 32, 33):
            given = rng.normal(size=[rows, 8]).astype(np.float32)
            expected = function(tf.constant(given)).numpy().tobytes()
            assert call([given], rows=rows).numpy().tobytes() == expected
            with monkeypatch.context() as patch:  # the other cores are taken
                patch.setattr(call, "_cores", 1)
                assert call([given], rows=rows).numpy().tobytes() == expected
