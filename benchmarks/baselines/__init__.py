"""Baselines of the models, each run in the environment of `environments.BASELINES`."""
