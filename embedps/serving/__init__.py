"""Exports of a run's model that stock TensorFlow loads."""
