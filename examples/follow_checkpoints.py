"""Keeps a run's embeddings in a dict while it trains, as a serving cache would.

usage: python examples/follow_checkpoints.py [DIRECTORY]
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import embedps
from embedps.checkpoint import Reached, Reset, Rows


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


def follow(model_dir: Path) -> dict[tuple[str, int], list[float]]:
    """Follows a run until its last checkpoint; a real cache would serve requests meanwhile."""
    cache: dict[tuple[str, int], list[float]] = {}
    changed = 0
    for change in embedps.follow(model_dir):
        match change:
            case Reset():
                cache.clear()
            case Rows(batch=batch):
                changed += batch.num_rows
                for row in batch.to_pylist():
                    key = (row["table"], row["id"])
                    if row["removed"]:
                        cache.pop(key, None)
                    else:
                        cache[key] = row["embedding"]
            case Reached(step=step):
                print(f"step {step}: {changed:,} rows changed, {len(cache):,} rows in the cache")
                changed = 0
    return cache


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="embedps-"))
    model_dir = directory / "model"
    train = [sys.executable, "-m", "embedps.train", "--eval", "none", "--delta-secs", "1"]
    train += ["--data", str(make_data(directory)), "--model-dir", str(model_dir), "--epochs", "3"]
    train += ["--batch-size", "512", "--embedding-dim", "8"]
    with subprocess.Popen(train, stdout=subprocess.DEVNULL) as run:
        while not list(model_dir.glob("manifests/*.json")) and run.poll() is None:
            time.sleep(0.1)  # until the first checkpoint
        cache = follow(model_dir)
    tables = sorted({table for table, _ in cache})
    print(f"{len(cache):,} rows of {len(tables)} tables are those of the last checkpoint")


if __name__ == "__main__":
    main()
