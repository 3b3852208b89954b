"""Holds checkpoints on disk: manifests over bases, deltas and dense state; needs no TensorFlow."""

from embedps.checkpoint.chain import Position
from embedps.checkpoint.follow import Change, Reached, Reset, Rows, follow

__all__ = ["Change", "Position", "Reached", "Reset", "Rows", "follow"]
