"""Row hashes in NumPy are those of the kernels."""

import numpy as np
import pytest

from embedps.checkpoint.format.row_hashes import row_hashes, shards_of
from tests.kernels import twins

IDS = np.array([0, 1, -1, -(2**63), 2**63 - 1, 12345678901234567], np.int64)


@pytest.mark.parametrize("num_shards", [1, 2, 7, 16])
def test_shards_of_row_hashes_are_those_of_the_kernels(num_shards):
    shards = shards_of(row_hashes("C7", IDS), num_shards)
    np.testing.assert_array_equal(shards, twins.shard_of("C7", IDS, num_shards))
