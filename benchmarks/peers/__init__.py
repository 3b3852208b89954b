"""Who is measured: a program each, that speaks `protocol` and runs in an environment of its own.

Peers import NumPy and their own libraries only; `embedps_dlrm` is ours.
"""
