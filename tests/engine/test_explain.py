"""Which failures of TensorFlow are a lost server."""

import pytest
import tensorflow as tf

from embedps.engine.unit_functions import explain
from embedps.errors import ServerLostError

STALE = (
    "Resource input tensor contains an invalid device. This might happen when the client has "
    "connected to a different cluster, or some remote workers have been restarted."
)


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.UnavailableError(None, None, "failed to connect to all addresses"),
        tf.errors.CancelledError(None, None, "cancelled"),
        tf.errors.InvalidArgumentError(None, None, f"{STALE} [Op:EmbedpsStats] name: "),
    ],
)
def test_what_a_server_that_ended_makes_fail_is_a_lost_server(error):
    found = explain(error)
    assert isinstance(found, ServerLostError)
    assert "a parameter server is lost (" in str(found)


def test_what_a_unit_got_wrong_is_none():
    error = tf.errors.InvalidArgumentError(None, None, "indices[0] = 9 is not in [0, 4)")
    assert explain(error) is error
