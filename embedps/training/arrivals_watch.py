"""Watches the directory of a run where files arrive, and scores each before it is trained."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from embedps.cluster.interface import Cluster
from embedps.data.dataset import Dataset
from embedps.errors import DatasetError
from embedps.evaluation.inline import InlineEvaluation
from embedps.run.config import TrainConfig
from embedps.run.preparation import check_watch
from embedps.scheduling.unit_deaths import SetAsideError
from embedps.scheduling.watch_ledger import SPLIT, WatchLedger
from embedps.tables.specs import event_secs_of
from embedps.training.file_watch import FileWatch
from embedps.training.training_setup import TrainingSetup


def watch_arrivals(
    config: TrainConfig, setup: TrainingSetup, dataset: Dataset, cluster: Cluster
) -> FileWatch | None:
    """Makes the watch of a run; None if it watches nothing."""
    directory = check_watch(config)
    if directory is None or not isinstance(setup.ledger, WatchLedger):
        return None
    scoring = InlineEvaluation(setup.model, setup.collection, dataset, cluster)
    deaths = setup.ledger.deaths

    def score(watched: Dataset, stop: threading.Event) -> Mapping[str, float] | None:
        (file,) = watched.split(SPLIT).files

        def die() -> Exception | None:
            cause = deaths.count_death(file.path)
            return DatasetError(str(cause)) if isinstance(cause, SetAsideError) else cause

        return scoring.scores_of(watched, SPLIT, stop, die)

    return FileWatch(
        directory,
        dataset,
        setup.ledger,
        score,
        ahead_units=lambda: 2 * cluster.num_workers,
        needs_times=bool(event_secs_of(setup.model.tables)),
    )
