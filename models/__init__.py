"""The model zoo: each model is a module with a frozen `Config` and `make(config, dataset)`.

`make` returns an `embedps.Recommender`: tables, features and a function that builds the dense
network. The Keras models are in `models/networks/`, so that `--help` does not load TensorFlow.
"""

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras
