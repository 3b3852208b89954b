"""Makes a run to serve: a DLRM of the Kaggle configuration, and commits that are to come.

    python -m benchmarks.serving_run --folder DIR --rows N --commits K --changes M

DIR/model has the checkpoint of N rows of 16 floats. Each of K deltas changes M rows, one in fifty
of them new, and the network. Their manifests wait in DIR/later; `Commits` puts them in place.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import embedps

# isort: split
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console import command_line
from embedps.console.command_line import number, path

COLUMNS = [f"C{i}" for i in range(1, 27)]
FIRST_ID = 10**12  # far from the ids of the dataset
_NEW_SHARE = 50
_CHUNK = 50_000


def make(folder: Path, *, rows: int, commits: int, changes: int) -> None:
    """Makes the run and its later commits."""
    for command in (
        ["embedps.pipelines.generate", "--rows", "5000", "--output", folder / "day_0.tsv"],
        ["embedps.pipelines.criteo", "--input", folder / "day_0.tsv", "--output", folder / "data"],
    ):
        subprocess.run([sys.executable, "-m", *map(str, command)], check=True, stdout=sys.stderr)
    config = embedps.TrainConfig.from_options(
        model="dlrm",
        data=str(folder / "data"),
        model_dir=str(folder / "model"),
        rebase="consecutive",
        max_read_cost=1e9,
        keep_secs=1e6,
    )
    trainer = embedps.Trainer.from_config(config)
    each = rows // len(COLUMNS)
    for first in range(0, each, _CHUNK):
        ids = tf.range(FIRST_ID + first, FIRST_ID + min(each, first + _CHUNK), dtype=tf.int64)
        trainer.collection.lookup(dict.fromkeys(COLUMNS, ids), insert=True, partial=True)
    trainer.fit()
    write_commits(trainer, folder, COLUMNS, [changes] * commits, rows=each, first_id=FIRST_ID)


def write_commits(
    trainer: embedps.Trainer,
    folder: Path,
    columns: Sequence[str],
    changes: Sequence[int],
    *,
    rows: int,
    first_id: int,
) -> None:
    """Writes commits that are to come, after those of a trainer that has ended.

    Args:
      trainer: of the run in FOLDER/model.
      folder: whose FOLDER/later gets the manifests.
      columns: of one id per record, whose rows change.
      changes: of each commit, how many rows it changes.
      rows: of each column.
      first_id: of each column; the others follow it.
    """
    last = trainer.saver.last
    if last is None:
        raise RuntimeError("the run committed nothing")
    rng = np.random.default_rng(0)
    directory, later = (CheckpointDirectory(folder / name) for name in ("model", "later"))
    later.manifests_dir.mkdir(parents=True)
    for turn, all_changed in enumerate(changes):
        changed = all_changed // len(columns)
        new = changed // _NEW_SHARE
        ids = {}
        for name in columns:
            old = rng.choice(rows, changed - new, replace=False)
            added = np.arange(rows, rows + new)
            ids[name] = tf.constant(first_id + np.concatenate([old, added]))
        rows += new
        found = trainer.collection.lookup(ids, insert=True, partial=True)
        gradients: list[list[tf.Tensor | None]] = [
            [tf.random.normal(tf.shape(shard)) for shard in shards] for shards in found.rows
        ]
        step = last.step + turn + 1
        trainer.collection.update(
            found,
            gradients,
            learning_rate=tf.constant(0.01),
            step=tf.constant(step, tf.int64),
        )
        for variable in trainer.network.trainable_variables:
            variable.assign_add(tf.random.normal(variable.shape, stddev=1e-3))
        manifest = trainer.saver.save(
            step=step, ledger=last.ledger, partially_applied=dict, progress={}, final=False
        )
        place = directory.manifest_path(manifest.number)
        later.manifest_path(manifest.number).write_bytes(place.read_bytes())
    for waiting in later.numbers():
        directory.manifest_path(waiting).unlink()


class Commits:
    """The later commits of a run, one after another."""

    def __init__(self, folder: Path) -> None:
        self._directory = CheckpointDirectory(folder / "model")
        later = CheckpointDirectory(folder / "later")
        self._waiting = [later.read(number) for number in later.numbers()]

    def __len__(self) -> int:
        return len(self._waiting)

    def commit(self) -> int:
        """Commits the next one, as of now; gives its number."""
        manifest = dataclasses.replace(self._waiting.pop(0), wall_time=time.time())
        self._directory.commit(manifest)
        return manifest.number


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.serving_run", description=__doc__)
    parser.add_argument("--folder", type=path, required=True, metavar="DIR")
    for name in ("--rows", "--commits", "--changes"):
        parser.add_argument(name, type=number(int, least=1, most=10**9), required=True, metavar="N")
    options = parser.parse_args(arguments)
    make(options.folder, rows=options.rows, commits=options.commits, changes=options.changes)
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
