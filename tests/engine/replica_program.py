"""Replicas of one process beside workers that take steps together, for test_replica_unit.py.

A program of its own: TensorFlow never leaves a cluster that it has connected to.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import row_visits
from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.engine.steps.interface import ClipNorms
from tests import two_tasks
from tests.builders import make_dlrm, write_dataset
from tests.engine.builders import Trained
from tests.tables.builders import Rows, rows_of

RANKS, BATCH, ROWS = 3, 40, 550  # the last step has two parts, the last one ten rows
CLIP = ClipNorms(rows=0.05, dense=0.5)


class Case(NamedTuple):
    """A model and the optimizer of its network."""

    name: str
    recommender: Recommender
    dataset: Dataset
    kind: str


def train(case: Case, cluster: Cluster, folder: Path) -> tuple[list[np.ndarray], Rows]:
    """Trains one unit: with replicas where there are no servers, else on all workers."""
    model = Trained(case.recommender, case.dataset, cluster, kind=case.kind, rate=0.05)
    way: dict[str, Any] = {"sync": "full"} if cluster.num_ps else {"replicas": RANKS}
    function = model.make_unit(BATCH, shuffle_rows=ROWS, clip=CLIP, **way)
    ranks = [(rank, RANKS, -1) for rank in range(RANKS)] if cluster.num_ps else [()]
    units = [model.arguments(ROWS, seed=77, first_step=30, ranks=each) for each in ranks]
    for call in [cluster.schedule(function, each) for each in units]:
        cluster.fetch(call)
    return model.weights(), rows_of(model.collection, folder)


def main(directory: Path) -> None:
    """Checks that both have the same bits: variables, optimizer slots, rows and their steps."""
    clicks = write_dataset(directory / "clicks", train=(600,))
    visits = row_visits.write_dataset(directory / "visits", train=(600,), evaluation=(4,))
    tasks = two_tasks.make(two_tasks.Config(dropout=0.0), visits)
    cases = [
        Case("admission", make_dlrm(clicks, min_count=2), clicks, "adam"),
        Case("state", tasks, visits, "adamw"),
    ]
    here = EmbeddedCluster()
    found = [train(case, here, directory / f"{case.name}-replicas") for case in cases]
    cluster = LocalCluster(num_ps=1, num_workers=RANKS, log_dir=directory / "logs")
    try:
        for case, (weights, rows) in zip(cases, found, strict=True):
            theirs, expected = train(case, cluster, directory / f"{case.name}-workers")
            assert len(weights) == len(theirs)
            differ = sum(int(np.sum(a != b)) for a, b in zip(weights, theirs, strict=True))
            assert not differ, f"{case.name}: {differ} numbers of the network differ"
            assert rows.keys() == expected.keys()
            others = [key for key in rows if rows[key] != expected[key]]
            assert not others, f"{case.name}: {len(others)} of {len(rows)} rows differ"
            print(f"{case.name}: {len(rows)} rows, {sum(w.size for w in weights)} numbers: equal")
    finally:
        cluster.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
