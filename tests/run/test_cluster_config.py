"""What the options of a cluster say together."""

import pytest

from embedps.run.cluster_config import ClusterConfig


@pytest.mark.parametrize(
    ("asked", "num_workers", "bound"),
    [
        ({}, 4, None),
        ({}, 5, 3),
        ({}, 100, 3),
        ({"max_staleness_steps": -1}, 100, None),
        ({"max_staleness_steps": 0}, 2, 0),
        ({"max_staleness_steps": 8}, 100, 8),
        ({"sync": "dense"}, 100, None),
        ({"overlap": True}, 100, None),
        ({"overlap": True, "max_staleness_steps": -1}, 100, None),
        ({"sync": "full", "max_staleness_steps": -1}, 100, None),
    ],
)
def test_staleness_is_bounded_where_it_costs_accuracy(asked, num_workers, bound):
    assert ClusterConfig(**asked).staleness_bound(num_workers) == bound
