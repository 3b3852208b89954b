"""Does what `embedps scale` asks of a run.

Workers of a local cluster come and go while it trains. With other parameter servers, or workers in
step, another cluster takes its place. While the run trains, its processes are started, this process
connects to them too, all that is trained is made there and traced, and the rows are loaded that the
run has saved. Then the run ends what it has begun and saves a checkpoint, and the other cluster
loads what has changed since.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable
from pathlib import Path

from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.cluster.local_processes import LocalProcesses
from embedps.errors import ClusterError, UsageError
from embedps.run import scale_file
from embedps.run.cluster_config import STALE_STEPS, ClusterConfig
from embedps.storage.object_store import is_local
from embedps.training.prepared_cluster import PreparedCluster
from embedps.training.save_failures import in_background


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterChange:
    """Another cluster that takes the place of a run's.

    Attributes:
      token: of who asked for it.
      servers: how many parameter servers there are before and after it.
      workers: the same of workers.
      processes: of the other cluster; they run.
      prepared: done once all is there, or with the error by which it is not.
    """

    token: str
    servers: tuple[int, int]
    workers: tuple[int, int]
    processes: LocalProcesses
    prepared: concurrent.futures.Future[PreparedCluster]

    @property
    def problem(self) -> BaseException | None:
        """Why it cannot be done, if that is known."""
        if not self.prepared.done():
            return None
        return self.prepared.exception() or self.prepared.result().cluster.why_lost

    def close(self) -> None:
        """Ends the other cluster's processes."""
        if self.prepared.done() and self.prepared.exception() is None:
            self.prepared.result().cluster.leave()
        self.processes.close()

    def describe(self) -> str:
        """Names the tasks after and before it."""
        (ps, new_ps), (workers, new_workers) = self.servers, self.workers
        return (
            f"{_count(new_ps, 'parameter server')} and {_count(new_workers, 'worker')} instead of "
            f"{ps} and {workers}"
        )


class ScaleRequests:
    """Takes requests for other numbers of tasks, and answers them.

    Attributes:
      save_problem: tells why the last save failed; empty if it did not.
    """

    def __init__(
        self,
        model_dir: Path,
        config: ClusterConfig,
        cluster: Cluster,
        *,
        own: LocalCluster | None,
        prepare: Callable[[LocalProcesses], PreparedCluster],
    ) -> None:
        """Takes none yet; a request that is there already was to an earlier run.

        Args:
          own: the same cluster, if another may take its place.
          prepare: makes what is trained, on processes that run; called on another thread.
        """
        self._model_dir = model_dir
        self._config = config
        self._cluster = cluster
        self._own = own
        self._prepare = prepare
        self.save_problem: Callable[[], str] = lambda: ""
        self._change: ClusterChange | None = None
        self._cluster_is_in_place = False  # of the change, which is done with a first unit
        # Each look at an object store is paid for, so who refuses all does not look.
        self._looks = not cluster.why_fixed or is_local(model_dir)
        if self._looks:
            scale_file.take(model_dir)

    @property
    def due(self) -> ClusterChange | None:
        """The change for which all is there: the run should end what it has begun."""
        change = self._change
        if change is None or self._cluster_is_in_place or not change.prepared.done():
            return None
        return None if change.problem else change

    def follow(self, cluster: LocalCluster) -> None:
        """Takes that the other cluster is in place."""
        self._cluster = self._own = cluster
        self._cluster_is_in_place = True

    def done(self, said: str) -> None:
        """Takes that the other cluster trains; tells who asked for it."""
        if self._change is not None:
            scale_file.answer(self._model_dir, self._change.token, said=said)
        self._change, self._cluster_is_in_place = None, False

    def drop(self, why: str) -> None:
        """Ends the processes of a change that was not done, if there is one, and says why."""
        change, self._change = self._change, None
        if change is not None:
            change.close()
            scale_file.answer(self._model_dir, change.token, refused=why)

    def poll(self) -> list[str]:
        """Does what is asked for; returns lines that say so."""
        news = []
        change = self._change
        if change is not None and not self._cluster_is_in_place and (cause := change.problem):
            news.append(f"goes on as it is, without {change.describe()}: {cause}")
            self.drop(str(cause))
        asked = scale_file.take(self._model_dir) if self._looks else None
        if asked is None:
            return news
        try:
            said = self._begin(asked)
        except (UsageError, ClusterError) as error:
            scale_file.answer(self._model_dir, asked.token, refused=str(error))
            return news
        return [*news, said]

    def _begin(self, asked: scale_file.ScaleRequest) -> str:
        """Begins what was asked for, and answers if nothing follows; returns what to say."""
        cluster = self._cluster
        if cluster.why_fixed:
            raise UsageError(cluster.why_fixed)
        if self._change is not None:
            raise UsageError(f"{self._change.describe()} were asked for just now: wait for them")
        servers = asked.servers or cluster.num_ps
        workers = asked.workers or cluster.num_workers
        in_step = self._config.is_in_step and workers != cluster.num_workers
        if servers == cluster.num_ps and not in_step:
            said = self._scale_workers(workers)
            scale_file.answer(self._model_dir, asked.token, said=said)
            return said
        if self._own is None:
            raise UsageError(
                "the program that trains made the cluster, which only it can replace: let the run "
                "end, and train again on another"
            )
        if problem := self.save_problem():
            raise UsageError(
                f"other servers restore a checkpoint, and the last one failed: {problem}: ask "
                "again once one is written"
            )
        self._config.parts_needed(workers)
        processes = self._own.prepare(num_ps=servers, num_workers=workers)
        self._change = ClusterChange(
            token=asked.token,
            servers=(cluster.num_ps, servers),
            workers=(cluster.num_workers, workers),
            processes=processes,
            prepared=in_background(lambda: self._prepare(processes)),
        )
        return f"is to have {self._change.describe()}: ends what it has begun once they are ready"

    def _scale_workers(self, workers: int) -> str:
        """Has other workers while the run goes on; returns what to say."""
        self._cluster.scale(workers)
        said = f"the run has {_count(workers, 'worker')} from now on"
        begun_with = self._config.num_workers
        is_bounded = self._config.staleness_bound(begun_with) is not None
        if workers > STALE_STEPS and not is_bounded:
            said += (
                "; begun with fewer, it has no bound of stale steps, which lose accuracy: begin it "
                f"with --max-staleness-steps {STALE_STEPS - 1}"
            )
        return said


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"
