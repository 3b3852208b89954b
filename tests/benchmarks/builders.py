"""What the suite's tests run on."""

import dataclasses

from benchmarks import workload

TINY = dataclasses.replace(
    workload.W1, cardinalities=(3, 1000), dim=4, bottom_mlp=(8, 4), top_mlp=(8, 1)
)
