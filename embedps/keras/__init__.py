"""Keras mode: `fit`, `evaluate` and `predict` over a dataset, and checkpoints from `fit`."""
