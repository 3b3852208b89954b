"""Recovers a run from a lost parameter server while its client and all other servers live on.

The server's part of the tables and of the network goes back to the last checkpoint; the other
servers keep theirs. The ledger goes back too, so the units that were done since are trained again,
with the same numbers of steps. Servers that stayed have these steps in their logs and ignore their
gradients; the one that began anew applies them. So each step is applied once on each server, but
for those of units that were in progress at the checkpoint, as after any restart: the server's files
may have some of them already.

Workers that train a step together read what the servers that stayed have, which must not be ahead
of the rest: with `--sync`, all servers go back.

What this does not cover is left to `recovery.py`, which restarts the client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from embedps.checkpoint.format.manifest import Manifest
from embedps.cluster.interface import Cluster, LostServer
from embedps.engine.checkpoint_restore import read_values
from embedps.engine.rebound_handles import ReboundHandles, own_variable
from embedps.engine.steps.ways import ASYNCHRONOUS
from embedps.errors import CheckpointError, ServerLostError
from embedps.run.config import TrainConfig
from embedps.scheduling.ledger import Unit
from embedps.tables.specs import event_secs_of
from embedps.training.callback_effects import CallbackEffects
from embedps.training.checkpoint_schedule import CheckpointSchedule
from embedps.training.lost_progress import MAX_FRUITLESS, LostProgress
from embedps.training.training_setup import TrainingSetup

_NOTICE_SECS = 5.0  # a call fails before its server's end is noticed
_MAX_UNSAVED_BYTES = 1 << 20


class ServerRecovery:
    """Restores what a lost server had, in place."""

    def __init__(
        self,
        config: TrainConfig,
        cluster: Cluster,
        setup: TrainingSetup,
        effects: CallbackEffects,
    ) -> None:
        """Finds out whether this run can go on beside a server that is replaced."""
        self._cluster = cluster
        self._setup = setup
        self._effects = effects
        self._from: tuple[int, int] | None = None  # checkpoint and units aside, at the last one
        self._in_a_row = 0  # recoveries from these
        asked = config.cluster
        self._alone = asked.way(cluster.place) == ASYNCHRONOUS
        self._covers = bool(
            asked.recover_in_place
            and cluster.num_ps
            and not asked.in_groups
            and not setup.ledger.grows
            and config.eviction.evicted_rows is None
            and not event_secs_of(setup.model.tables)
            and not config.checkpoint.rebase_policy().cumulative
        )
        self._unsaved = self._values_of_no_checkpoint() if self._covers else {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Has the cluster replace servers within the block, if this run can go on with that.

        Raises:
          ServerLostError: a server is lost at the end of the block.
        """
        self._cluster.replace_servers(self._covers)
        try:
            yield
        finally:
            lost = self._cluster.replace_servers(False)
            if lost is not None:
                self._give_up(lost)

    def _give_up(self, lost: LostServer) -> NoReturn:
        """Ends the cluster: the client must begin anew."""
        self._cluster.replace_servers(False)
        error = ServerLostError(lost.why)
        self._cluster.give_up(error)
        raise error from None

    def recover(
        self, error: Exception, saves: CheckpointSchedule, say: Callable[[str], None]
    ) -> tuple[LostProgress, list[Unit]]:
        """Restores what a lost server had; no unit may be in progress.

        Args:
          error: why training stopped.
          saves: the save under way is dropped.
          say: shows a line.

        Returns:
          What is trained again, and its units.

        Raises:
          ServerLostError: the client must begin anew.
        """
        lost = self._cluster.lost_server(_NOTICE_SECS)
        if lost is None:
            raise error
        try:
            ended = saves.drop(_NOTICE_SECS)
            self._cluster.await_server(lost)
            # A call to the dead server may end only now, as TensorFlow leaves its process.
            if not ended and not saves.drop(self._cluster.server_timeout_secs):
                raise ServerLostError("a save did not end")
            served = time.time()
            manifest = self._restore(lost)
            restored = time.time()
            # gRPC tries once a second: what is left of that after the restore.
            self._cluster.await_workers(lost)
        except (CheckpointError, tf.errors.OpError, ServerLostError) as cause:
            say(f"{lost.why}: it cannot be restored alone: {cause}")
            self._give_up(lost)
        ledger = self._setup.ledger
        ledger.deaths.server_died()
        steps, rows, done = ledger.steps_done(), ledger.rows_done(), ledger.num_done
        again, repeated = ledger.go_back(manifest.ledger, in_part=self._alone)
        loss = LostProgress(
            why=lost.why,
            noticed_at=lost.noticed_at,
            checkpoint=manifest.number,
            units=done - ledger.num_done,
            steps=steps - ledger.steps_done(),
            examples=rows - ledger.rows_done(),
            repeated=repeated,
            set_aside=len(ledger.deaths.set_aside),
            in_place=True,
            served_secs=round(served - lost.noticed_at, 2),
            restored_secs=round(restored - served, 2),
        )
        say(loss.describe())
        others = "the others go on as they are" if self._alone else "so do the others"
        say(
            f"parameter server {lost.number} resumes from checkpoint {manifest.number}, step "
            f"{manifest.step}, and {others}: it served again after {loss.served_secs} s, and "
            f"{'was' if self._alone else 'all were'} restored in {loss.restored_secs} s"
        )
        return loss, again

    def _restore(self, lost: LostServer) -> Manifest:
        """Gives the servers what the last checkpoint has of them, and functions their handles."""
        setup, device = self._setup, lost.device
        handles = ReboundHandles(device)
        collection = setup.collection
        shards = [s for s, on in enumerate(collection.devices) if on == device]
        replaced = collection.replace_shards(shards)
        if self._alone:
            replaced += setup.step_logs.replace([device])
        else:
            replaced += setup.step_logs.replace(setup.step_logs.devices)
            stayed = [s for s, on in enumerate(collection.devices) if on != device]
            collection.clear_shards(stayed)
            shards += stayed
        for old, new in replaced:
            handles.replace(old, new)
        for function in collection.files.functions():
            handles.rebind(function)
        manifest = setup.writer.restore_shards(shards)
        if manifest is None or not setup.ledger.is_of(manifest.ledger):
            raise ServerLostError("there is no checkpoint of this run yet")
        known = (manifest.number, len(setup.ledger.deaths.set_aside))
        self._in_a_row = self._in_a_row + 1 if known == self._from else 1
        self._from = known
        if self._in_a_row > MAX_FRUITLESS:
            raise ServerLostError(f"{MAX_FRUITLESS} times in a row, no checkpoint was written")
        values = read_values(setup.directory, manifest, setup.variables, whole=True)
        for variable, value in values:
            if variable.device == device:
                handles.remake(variable, value, is_saved=True)
            elif not self._alone:
                own_variable(variable).assign(value)
        rate = setup.dense_rate
        for variable in self._cluster.variables_on(device):
            own = own_variable(variable)
            if id(own) in self._unsaved:
                is_rate = rate is not None and own is own_variable(rate)
                handles.remake(variable, self._unsaved[id(own)], is_saved=is_rate)
        for function in self._cluster.traced_functions():
            handles.rebind(function)
        self._effects.set_rate_again()
        setup.step_logs.forget(range(self._cluster.num_workers))  # none is in a step
        return manifest

    def _values_of_no_checkpoint(self) -> dict[int, np.ndarray]:
        """Reads the variables that no checkpoint has, such as what an optimizer is set to."""
        found: dict[int, Any] = {}
        saved = {id(own_variable(v)) for v in self._setup.variables.values()}
        for device in dict.fromkeys(self._setup.collection.devices):
            for variable in self._cluster.variables_on(device):
                own = own_variable(variable)
                is_small = own.dtype.size * (own.shape.num_elements() or 0) <= _MAX_UNSAVED_BYTES
                if id(own) not in saved and is_small:
                    found[id(own)] = own.numpy()
        return found
