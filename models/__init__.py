"""Models: dense networks over looked-up rows, each a module with a Config and a make."""

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras
