"""The measured programs: each speaks `protocol` and runs in its own environment.

Peers import only NumPy and their own libraries. `embedps_dlrm` is ours.
"""
