"""Holds checkpoints on disk: manifests over bases, deltas and dense state; needs no TensorFlow."""

from embedps.checkpoint.chain import Position
from embedps.checkpoint.changes import Change, Reached, Reset, Rows
from embedps.checkpoint.follow import follow

__all__ = ["Change", "Position", "Reached", "Reset", "Rows", "follow"]
