"""Checkpoints on disk: manifests over bases, deltas and dense state; no TensorFlow anywhere here.

manifest.py    what a checkpoint consists of, and its JSON
directory.py   where everything lies, and the commit
chain.py       a place in a run's history, and the saves that lead on from it
policies.py    when to cut, when to begin a new base
dense.py       the dense variables' file
rows.py, quantize.py, replay.py   row files, their encodings, and chains replayed from them
follow.py      a run's changes as Arrow batches, from any position on
compact.py     base and deltas merged into a new base
lease.py, retention.py   who reads what, what stays, and the removal of the rest
verify.py, inspect.py, diff.py    what `python -m embedps.checkpoint` tells
io.py, objects.py   every byte written here goes through these
"""

from embedps.checkpoint.chain import Position
from embedps.checkpoint.follow import Change, Reached, Reset, Rows, follow

__all__ = ["Change", "Position", "Reached", "Reset", "Rows", "follow"]
