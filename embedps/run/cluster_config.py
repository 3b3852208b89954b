"""The cluster options of a run: where it trains, and how long it waits for servers."""

from __future__ import annotations

import dataclasses
from typing import Any

from embedps.config_fields import MAX_COUNT, MAX_SECS, check, option, options_of, values_of
from embedps.engine.steps.ways import OnLostWorker, Place, SyncMode, Way, way_of
from embedps.errors import UsageError

MAX_LOCAL_TASKS = 256
"""The most parameter servers, and the most workers, of a local cluster; each is a process."""

MAX_SHARDS = 1024
"""The most shards of a table; each adds operations to the graph of every step."""

NO_BOUND = -1
"""What `max_staleness_steps` is for a run whose steps may meet any number of updates."""

STALE_STEPS = 4
"""Updates of others that a step must not often meet: from there on, DLRM with Adam lost up to 0.08
of held-out AUC on a short log (docs/guides/strategies.md)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Where a run trains: in this process, on a local cluster, or on the cluster of TF_CONFIG."""

    num_ps: int = option(
        0,
        "start a local cluster with this many parameter servers; 0 trains in this process",
        least=0,
        most=MAX_LOCAL_TASKS,
    )
    num_workers: int = option(
        1,
        "workers of the local cluster; in this process, units that are trained concurrently",
        least=1,
        most=MAX_LOCAL_TASKS,
    )
    num_shards: int = option(
        0,
        "shards of each table; 0 makes one per parameter server",
        least=0,
        most=MAX_SHARDS,
    )
    replicas: int = option(
        1,
        "in this process, batches per step: their gradients are computed of one state, merged in "
        "order and applied once, as workers in step do",
        least=1,
        most=MAX_LOCAL_TASKS,
    )
    mirrored: bool = option(
        False,
        "compute the batches of --replicas at the same time, as tf.distribute.MirroredStrategy "
        "does: each on a GPU, or on a logical CPU if there are none",
    )
    overlap: bool = option(
        False,
        "on a cluster, read the rows and variables of a step while the previous step computes: "
        "steps are faster, but each reads values that lack the gradients of the step before it",
    )
    sync: SyncMode = option(
        "none",
        "on a cluster, what the workers' batches of a step update together, as one sum: full is "
        "the network and the rows, dense is the network alone, none is nothing: each worker's "
        "step is its own",
    )
    sync_group_size: int = option(
        0,
        "with --sync, how many workers take each step together; groups of so many do not wait for "
        "each other, and 0 makes one group of all",
        least=0,
        most=MAX_LOCAL_TASKS,
    )
    on_lost_worker: OnLostWorker = option(
        "repeat",
        "with --sync, what the others do if a worker is lost: repeat waits until its part is "
        "trained again, so that each step has a part of all; continue goes on with those left",
    )
    backup_workers: int = option(
        0,
        "with --on-lost-worker continue, a step does not wait for this many slowest workers; what "
        "they bring late is in a later step",
        least=0,
        most=MAX_LOCAL_TASKS - 1,
    )
    max_staleness_steps: int | None = option(
        None,
        "on a cluster, let a step begin only if it and the steps under way will each meet the "
        f"updates of at most this many others; 0 trains one step at a time, {NO_BOUND} is no bound "
        f"(default: {STALE_STEPS - 1} if more than {STALE_STEPS} workers train without --sync and "
        "--overlap, else no bound)",
        least=NO_BOUND,
        most=MAX_COUNT,
    )
    recover_in_place: bool = option(
        True,
        "go on beside a parameter server that is lost and started again, and restore it alone (all "
        "with --sync); otherwise, or where that cannot be done, the command restarts itself",
    )
    min_workers: int = option(
        0,
        "with TF_CONFIG, start once this many of its workers are there: others may come later, and "
        "leave; 0 waits for all",
        least=0,
        most=MAX_COUNT,
    )
    server_timeout_secs: float = option(
        15.0,
        "a worker or parameter server that does not answer for this many seconds is taken as dead",
        least=1,
        most=MAX_SECS,
    )
    wait_secs: float = option(
        600.0,
        "longest wait in seconds: for servers to start, for any unit to end, for the last scores",
        above=0,
        most=MAX_SECS,
    )

    def __post_init__(self) -> None:
        check(self)
        self.check_way()
        if self.num_ps:
            self.parts_needed(self.num_workers)

    def way(self, place: Place | None = None) -> Way:
        """Gives the way in which steps are taken.

        Args:
          place: where tables and variables are; by default as far as the options tell.
        """
        return way_of(
            place=place or ("servers" if self.num_ps else "process"),
            replicas=self.replicas,
            sync=self.sync,
            in_groups=self.in_groups,
            by_group=self.sync_group_size > 0,
        )

    def check_way(self, place: Place | None = None) -> None:
        """Checks that these options go with the way in which steps are taken; see `way`.

        Raises:
          UsageError: they do not.
        """
        self.way(place).check(asked_of(self), place)

    @property
    def is_in_step(self) -> bool:
        """Whether workers train each step together, all or those of a group."""
        return self.sync != "none"

    @property
    def in_groups(self) -> bool:
        """Whether workers in step go on without those that are lost or slow."""
        return self.on_lost_worker == "continue"

    def staleness_bound(self, num_workers: int) -> int | None:
        """Gives how many updates of others a step may meet; None if any number.

        Args:
          num_workers: of the cluster; 1 where there is none.
        """
        if self.max_staleness_steps is not None:
            return None if self.max_staleness_steps == NO_BOUND else self.max_staleness_steps
        is_free = not (self.is_in_step or self.overlap)
        return STALE_STEPS - 1 if is_free and num_workers > STALE_STEPS else None

    def group_size(self, num_workers: int) -> int:
        """Gives how many workers take each step together, if any do.

        Raises:
          UsageError: the workers cannot be divided into such groups.
        """
        size = self.sync_group_size or num_workers
        if self.sync_group_size and (size == 1 or num_workers % size):
            raise UsageError(
                f"--sync-group-size must divide the {num_workers} workers into groups of 2 or more "
                f"but is {size}: give a divisor, or leave it out for one group"
            )
        return size

    def parts_needed(self, num_workers: int) -> int:
        """Gives how many workers' parts a step waits for, if workers take steps together.

        Raises:
          UsageError: it would wait for nobody, or groups have no such size.
        """
        if self.backup_workers >= num_workers:
            raise UsageError(
                f"--backup-workers must be less than the {num_workers} workers but is "
                f"{self.backup_workers}: give fewer, or more workers"
            )
        return self.group_size(num_workers) - self.backup_workers


def asked_of(config: Any) -> dict[str, Any]:
    """Gives the options of a config that differ from their defaults, by name."""
    defaults = {each.name: each.default for each in options_of(type(config))}
    asked = {name: v for name, v in values_of(config).items() if v != defaults[name]}
    if asked.get("max_staleness_steps") == NO_BOUND:  # as without it, but for its default
        del asked["max_staleness_steps"]
    return asked
