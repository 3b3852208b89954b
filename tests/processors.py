"""Tells what the processor has, on which TensorFlow's order of summing depends."""

from pathlib import Path

_FLAGS = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()

SUMS_IN_ORDER = "avx512f" in _FLAGS
"""With AVX-512, TensorFlow's products of matrices sum in order of the dimension, as ours do."""

HAS_AMX = "amx_bf16" in _FLAGS
"""With AMX, our ops multiply bfloat16; else they multiply the float32 that they are given."""
