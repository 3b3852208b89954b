"""Trains a model of your own on a CSV file, and prints its held-out scores.

usage: python examples/own_model.py [DIRECTORY]
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import embedps
import numpy as np
import tensorflow as tf

SCHEMA = """
format = "csv"

[[column]]
name = "clicked"
as = "label"

[[column]]
names = ["user", "item"]
as = "categorical"
type = "string"

[[column]]
name = "price"
as = "numeric"
transform = ["log1p", "standardize"]
"""


def write_clicks(path: Path, num_rows: int = 40_000) -> None:
    """Writes clicks that follow from the taste of a user, the kind of an item, and the price."""
    rng = np.random.default_rng(1)
    user, item = rng.integers(0, 500, num_rows), rng.integers(0, 200, num_rows)
    taste, kind = rng.normal(0, 1, (500, 4)), rng.normal(0, 1, (200, 4))
    price = rng.gamma(2.0, 10.0, num_rows)
    logit = (taste[user] * kind[item]).sum(axis=1) - 0.05 * (price - 20)
    clicked = rng.random(num_rows) < 1 / (1 + np.exp(-logit))
    with path.open("w") as file:
        file.write("clicked,user,item,price\n")
        for row in zip(clicked, user, item, price, strict=True):
            file.write("{:d},u{},i{},{:.2f}\n".format(*row))


class Match(embedps.ClickModel):
    """Multiplies the user's and the item's embedding, and adds what the price says."""

    def __init__(self) -> None:
        super().__init__(label="clicked")
        self.embeddings = embedps.Embeddings({"user": 8, "item": 8})
        self.hidden = tf.keras.layers.Dense(16, "relu")
        self.out = tf.keras.layers.Dense(1)

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        found = self.embeddings(features)
        match = found["user"] * found["item"]
        price = self.hidden(features["price"][:, None])
        return tf.reshape(self.out(tf.concat([match, price], axis=1)), [-1])


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="embedps-"))
    directory.mkdir(parents=True, exist_ok=True)
    write_clicks(directory / "clicks.csv")
    (directory / "clicks.toml").write_text(SCHEMA)
    ingest = [sys.executable, "-m", "embedps.pipelines.ingest", "--num-shards", "2"]
    ingest += ["--schema", f"{directory}/clicks.toml", "--input", f"{directory}/clicks.csv"]
    subprocess.run([*ingest, "--output", f"{directory}/data"], check=True)

    dataset = embedps.Dataset.open(directory / "data")
    recommender = embedps.Recommender(build=Match)
    config = embedps.TrainConfig(
        data=str(dataset.directory),
        model_dir=str(directory / "model"),
        epochs=10,
        batch_size=256,
        evaluation=embedps.EvaluationConfig(mode="inline", stop_patience=2),
    )
    result = embedps.Trainer(recommender, dataset, config).fit()
    print(result)
    best = result.scores.best()
    if best is not None:
        print(f"best held-out AUC: {best.auc:.4f}")


if __name__ == "__main__":
    main()
