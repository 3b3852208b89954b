"""Trains DLRM on two parameter servers and two workers of this machine, until a score is reached.

usage: python examples/local_cluster.py [DIRECTORY]
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import embedps
from embedps.models import dlrm

GOAL = 0.70


class StopAtGoal(embedps.Callback):
    """Prints each score, and ends the run at the first that is good enough."""

    def on_evaluation(self, run: embedps.RunControl, entry: Mapping[str, Any]) -> None:
        print(f"step {entry['step']}: held-out AUC {entry['auc']:.4f}")
        if entry["auc"] > GOAL:
            run.stop(f"the AUC is above {GOAL}")


def make_data(directory: Path) -> Path:
    """Generates click logs in Criteo's format and makes a dataset of them."""
    logs, data = directory / "clicks.tsv.gz", directory / "data"
    commands = (
        ("embedps.pipelines.generate", "--rows", "100000", "--seed", "1", "--output", str(logs)),
        (
            "embedps.pipelines.criteo",
            "--input",
            str(logs),
            "--output",
            str(data),
            "--num-shards",
            "2",
        ),
    )
    for module, *arguments in commands:
        if not data.exists():
            subprocess.run([sys.executable, "-m", module, *arguments], check=True)
    return data


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="embedps-"))
    config = embedps.TrainConfig(
        data=str(make_data(directory)),
        model_dir=str(directory / "model"),
        epochs=5,
        batch_size=512,
        unit_rows=8192,
        cluster=embedps.ClusterConfig(num_ps=2, num_workers=2),
        evaluation=embedps.EvaluationConfig(mode="inline", every_units=4),
    )
    model = dlrm.Config(embedding_dim=8, bottom_mlp=(64,), top_mlp=(64,))
    result = embedps.Trainer.from_config(config, model, callbacks=[StopAtGoal()]).fit()
    print(result)


if __name__ == "__main__":
    main()
