"""Holds a training step: the model's interface, unit functions, and the ways to take a step."""
