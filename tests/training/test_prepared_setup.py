"""What is made for another cluster beside a run, and takes over what the run saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.row_visits import Config, make, write_dataset
from embedps.cluster.embedded import EmbeddedCluster
from embedps.engine.recommender import Recommender
from embedps.run.config import TrainConfig
from embedps.training.training_setup import resume, set_up


def test_setup_beside_a_run_disturbs_nothing_and_resumes_what_it_saved(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", train=(500,), evaluation=(100,))
    config = TrainConfig(data=str(tmp_path / "data"), model_dir=str(tmp_path / "m"), batch_size=64)
    inner, drawn = make(Config(), dataset), []

    def build():
        drawn.append(np.random.normal())  # no checkpoint has it
        return inner.build()

    recommender = Recommender(build=build)
    cluster = EmbeddedCluster()
    first = set_up(recommender, dataset, config, cluster, [], run_id=1)
    saved = first.writer.save(
        step=0,
        ledger=first.ledger.state(),
        partially_applied=dict,
        progress={"examples": 0},
        final=False,
    )
    under_way = tmp_path / "m" / "delta-7"
    under_way.mkdir()
    (under_way / "part").write_text("not committed yet")
    second = set_up(recommender, dataset, config, cluster, [], run_id=2, before=first)
    assert under_way.is_dir()
    assert drawn[0] == drawn[1]
    assert second.ledger is first.ledger
    assert second.writer.last is None
    assert resume(second, config.seed) == saved == second.writer.last
    assert not under_way.is_dir()
    for name, variable in first.variables.items():
        np.testing.assert_array_equal(second.variables[name].numpy(), variable.numpy())
