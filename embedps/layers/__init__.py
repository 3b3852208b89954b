"""Layers, losses and metrics of Keras 2, in an engine's step or by themselves."""

import tensorflow as tf

from embedps.errors import UsageError

if not tf.keras.layers.Layer.__module__.startswith("tf_keras."):
    raise UsageError(
        "embedps needs Keras 2 (the package tf-keras), but tf.keras is Keras 3 in this process: "
        "import embedps before tf.keras is first used, or set TF_USE_LEGACY_KERAS=1"
    )
