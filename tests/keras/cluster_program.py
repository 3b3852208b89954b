"""Trains a model in one process and on a local cluster, and prints their held-out losses as JSON.

usage: python -m tests.keras.cluster_program MODEL DATASET DIRECTORY
"""

import json
import sys
from pathlib import Path

import tensorflow as tf

import embedps
from tests.builders import make_config
from tests.keras.models import MODELS, features

RATE = 0.05


def held_out_loss(name: str, dataset: embedps.Dataset, directory: Path, servers: int) -> float:
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    recommender = embedps.Recommender(
        build=lambda: MODELS[name](embedps.Embeddings(features())),
        optimizer=lambda: tf.keras.optimizers.Adagrad(RATE),
    )
    config = make_config(
        dataset, directory, eval="inline", epochs=3, batch_size=64, unit_rows=1024,
        sparse_learning_rate=RATE, num_ps=servers, num_workers=max(servers, 1),
    )  # fmt: skip
    scores = embedps.Trainer(recommender, dataset, config).fit().scores[-1]
    return next(loss for key in ("loss", "logloss") if (loss := scores.get(key)) is not None)


def main(name: str, data: str, directory: str) -> None:
    dataset = embedps.Dataset.open(data)
    losses = [held_out_loss(name, dataset, Path(directory, str(n)), n) for n in (0, 2)]
    print(json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
