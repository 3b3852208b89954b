"""Trains on two servers, of which one is killed when nothing is left but to measure the run.

Run as `python -m tests.training.loses_server_at_end DATA MODEL_DIR`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any
from unittest import mock

import embedps
from benchmarks import row_visits
from embedps.training import run_measures, trainer
from tests.commands import processes_with

DATA, MODEL_DIR = sys.argv[1:]
_kills = [signal.SIGKILL]


def measure(*arguments: Any) -> dict[str, Any]:
    """Measures a run after a server of it was killed, the first time."""
    if _kills:
        (server,) = processes_with(f"{MODEL_DIR}/logs/ps-1.log")
        os.kill(server, _kills.pop())
    return run_measures.measure(*arguments)


config = embedps.TrainConfig(
    data=DATA,
    model_dir=MODEL_DIR,
    model="benchmarks.row_visits",
    cluster=embedps.ClusterConfig(num_ps=2, num_workers=2),
)
with mock.patch.object(trainer, "measure", measure):
    embedps.Trainer.from_config(config, row_visits.Config(row_dim=2)).fit()
