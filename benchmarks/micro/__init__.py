"""Kernels one by one under pytest-benchmark: `python -m pytest benchmarks/micro`; not tests."""
