"""Benchmarks: each writes JSON, and compares within one run, by ratio."""

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras
from embedps import quiet

quiet.import_tensorflow()
