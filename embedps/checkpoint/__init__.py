"""Checkpoints on disk: manifests over bases, deltas and dense state; no TensorFlow anywhere here.

manifest.py    what a checkpoint consists of, and its JSON
directory.py   where everything lies, and the commit
dense.py       the dense variables' file
rows.py        the row files, replayed without the kernels
lease.py, retention.py   who reads what, and the removal of what nothing needs
verify.py, inspect.py    `python -m embedps.checkpoint inspect|verify|export DIR`
io.py          every byte written here goes through it
"""
