"""Does what `embedps scale` asks of a run."""

from __future__ import annotations

from pathlib import Path

from embedps.cluster.interface import Cluster
from embedps.errors import UsageError
from embedps.run import scale_file
from embedps.run.cluster_config import STALE_STEPS, ClusterConfig


class ScaleRequests:
    """Takes requests for more workers or fewer, and answers them."""

    def __init__(self, model_dir: Path, config: ClusterConfig, cluster: Cluster) -> None:
        """Takes none yet; a request that is there already was to an earlier run."""
        self._model_dir = model_dir
        self._config = config
        self._cluster = cluster
        if cluster.scales:
            scale_file.take(model_dir)

    def poll(self) -> list[str]:
        """Does what is asked for; returns lines that say so."""
        if not self._cluster.scales:
            return []
        asked = scale_file.take(self._model_dir)
        if asked is None:
            return []
        token, workers = asked
        try:
            if self._config.is_in_step:
                raise UsageError(
                    f"a run with --sync {self._config.sync} keeps its workers, of which each has a "
                    "part of a step: stop it, and run it again with another --num-workers"
                )
            self._cluster.scale(workers)
        except UsageError as error:
            scale_file.answer(self._model_dir, token, refused=str(error))
            return []
        said = f"the run has {workers} workers from now on"
        begun_with = self._config.num_workers
        is_bounded = self._config.staleness_bound(begun_with) is not None
        if workers > STALE_STEPS and not is_bounded:
            said += (
                "; begun with fewer, it has no bound of stale steps, which lose accuracy: begin it "
                f"with --max-staleness-steps {STALE_STEPS - 1}"
            )
        scale_file.answer(self._model_dir, token, said=said)
        return [said]
