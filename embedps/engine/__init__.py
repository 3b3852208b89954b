"""Holds a training step: the model's interface, unit functions, and the exchange with servers."""
