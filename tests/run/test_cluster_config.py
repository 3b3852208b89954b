"""What the options of a cluster say together."""

import pytest

from embedps.errors import UsageError
from embedps.run.cluster_config import ClusterConfig
from embedps.run.config import TrainConfig


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
        ({"sync": "full", "sync_group_size": 2}, 100, None),
    ],
)
def test_staleness_is_bounded_where_it_costs_accuracy(asked, num_workers, bound):
    assert ClusterConfig(**asked).staleness_bound(num_workers) == bound


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ({}, 6),
        ({"sync_group_size": 2}, 2),
        ({"sync_group_size": 3}, 3),
        ({"sync_group_size": 6}, 6),
        ({"on_lost_worker": "continue", "backup_workers": 2}, 4),
    ],
)
def test_rates_are_of_the_batches_that_a_step_waits_for(asked, parts):
    config = TrainConfig.from_options(
        data="d", model_dir="m", batch_size=10, rates_batch_size=5, sync="full", **asked
    )
    assert config.row_rate_scale(6) == config.dense_rate_scale(6) == 2 * parts


@pytest.mark.parametrize(("size", "num_workers"), [(1, 4), (3, 4), (8, 4), (2, 1)])
def test_workers_that_make_up_no_whole_groups_are_refused(size, num_workers):
    told = f"--sync-group-size must divide the {num_workers} workers into groups of 2 or more but "
    with pytest.raises(UsageError, match=f"{told}is {size}: give a divisor"):
        ClusterConfig(num_ps=1, num_workers=num_workers, sync="full", sync_group_size=size)
    joined = ClusterConfig(sync="full", sync_group_size=size)  # TF_CONFIG has the workers
    with pytest.raises(UsageError, match=told):
        joined.parts_needed(num_workers)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, "with --sync none each takes its own: give --sync full or dense"),
        ({"sync": "full", "on_lost_worker": "continue"}, "give --backup-workers, or --on-lost-w"),
        ({"sync": "dense", "backup_workers": 1}, "--on-lost-worker repeat waits for all"),
        ({"sync": "dense", "max_staleness_steps": 1}, "--max-staleness-steps bounds"),
        ({"sync": "full", "overlap": True}, "--sync full begins a step once the one before"),
    ],
)
def test_what_does_not_go_with_groups_is_refused(asked, told):
    with pytest.raises(UsageError, match=told):
        ClusterConfig(num_ps=1, num_workers=4, sync_group_size=2, **asked)
