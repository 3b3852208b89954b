"""Benchmarks of single kernels with pytest-benchmark: `python -m pytest benchmarks/micro`."""
