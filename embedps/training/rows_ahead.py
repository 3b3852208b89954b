"""Loads a run's rows into the tables of another cluster, while the run trains on its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from embedps.checkpoint.follow import Follower
from embedps.errors import CheckpointError
from embedps.tables.table_use import ShardUse
from embedps.training.checkpoint_schedule import CheckpointSchedule
from embedps.training.training_setup import TrainingSetup

_TICK_SECS = 0.1
_ROOM = 1.5  # bytes of memory that must be free for each byte of the run's tables


def load_ahead(
    setup: TrainingSetup,
    running: TrainingSetup,
    saves: CheckpointSchedule,
    is_over: Callable[[], bool],
) -> None:
    """Loads what the run has saved, and a further save, so that little is left for its pause.

    Args:
      setup: made beside the run; its tables are empty.
      running: what the run trains, and saves.
      saves: of the run, which another thread polls.
      is_over: whether nobody waits for `setup` any more.

    Raises:
      CheckpointError: a checkpoint cannot be read, or the next one could not be written.
    """
    setup.collection.hold_sweeps(True)  # a row that goes now would go again after the change
    with Follower(setup.directory, holder="scale") as follower:

        def catch_up() -> None:
            while (advance := follower.next()) is not None:
                setup.writer.load_ahead(advance)
                follower.reached(advance)

        catch_up()
        while saves.under_way and not is_over():
            time.sleep(_TICK_SECS)
        before = running.writer.last
        saves.hurry()
        while saves.lags and running.writer.last is before and not is_over():
            if problem := saves.problem():
                raise CheckpointError(f"the last checkpoint could not be written: {problem}")
            time.sleep(_TICK_SECS)
        catch_up()


def fits_twice(shards: Sequence[ShardUse]) -> bool:
    """Tells whether the machine, or its container, has room for the shards' tables once more."""
    free = [shard.available_bytes for shard in shards if shard.available_bytes is not None]
    return bool(free) and min(free) > _ROOM * sum(shard.memory_bytes for shard in shards)
