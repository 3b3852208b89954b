"""The clicks of `benchmarks.models`: AUC of the models and of tuned baselines in folds of samples.

Each sample, model, fold and seed is a measurement of its own. It is written down when it is made,
with what it was made with, so that the same command goes on after an interruption and measures only
what is absent or was made with something else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import environments
from benchmarks.generated_ads import write_ads
from benchmarks.model_folds import Fold, score_fold
from embedps.data.dataset import Dataset
from embedps.errors import EmbedpsError
from embedps.run.presets import OF_MODELS, PRESETS

SEEDS = (0, 1, 2)
FOLDS = 5
"""Of the rows; of a generated log, which has many, the first is scored."""
SAMPLES = {
    "criteo kaggle": ("criteo", "criteo_kaggle_12768.tsv.gz"),
    "criteo terabyte": ("criteo", "criteo_terabyte_10000.tsv.gz"),
    "avazu": ("avazu", "avazu_train.csv.gz"),
    "movielens 100k": ("movielens_100k", "movielens_100k_u.data.gz"),
}
GENERATED = ("generated click log", "generated ads")
GENERATED_ROWS = 75_000
BASELINES = ("logistic regression", "LightGBM")
Run = Callable[..., None]
"""Runs a module of this environment with arguments."""
PROGRAM = Path(__file__).parent / "baselines" / "clicks.py"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
      models: of the zoo.
      flags: of their runs, after the preset.
      inner: score on rows split off the rows to train on, to choose settings by: no baseline, and
        one seed.
      max_secs: begin no measurement after so many seconds; 0 is no limit.
    """

    models: tuple[str, ...]
    flags: tuple[str, ...] = ()
    inner: bool = False
    max_secs: float = 0.0


class Sample:
    """A sample's rows and their folds."""

    def __init__(self, name: str, samples: Path, folder: Path, run: Run) -> None:
        """Makes a dataset of the sample's file, or of a log that it generates.

        Args:
          name: one of SAMPLES or of GENERATED.
          samples: the folder of the real samples.
          folder: for the dataset and the baselines' input.
          run: makes the dataset.
        """
        schema, log = self._log(name, samples, folder, run)
        made = folder / "set"
        where = ("--input", log, "--output", str(made), "--num-shards", "1")
        run("embedps.pipelines.ingest", "--schema", schema, *where, "--eval-fraction", "0.01")
        self.folder = folder
        self.dataset = Dataset.open(made)
        paths = [p for split in self.dataset.splits for p in self.dataset.paths(split)]
        self.table = pa.concat_tables([pq.read_table(path) for path in paths])
        self._folds = np.random.default_rng(0).integers(0, FOLDS, self.table.num_rows)
        self.labels = self.table[self.dataset.label].to_numpy()

    @staticmethod
    def _log(name: str, samples: Path, folder: Path, run: Run) -> tuple[str, str]:
        if name in SAMPLES:
            schema, file = SAMPLES[name]
            return schema, str(samples / file)
        if name == "generated ads":
            return write_ads(folder, GENERATED_ROWS, seed=7)
        log = str(folder / "log.tsv.gz")
        run(
            "embedps.pipelines.generate",
            "--rows",
            str(GENERATED_ROWS),
            "--seed",
            "7",
            "--output",
            log,
        )
        return "criteo", log

    def fold(self, number: int) -> Fold:
        """Gives a fold."""
        return Fold(
            dataset=self.dataset,
            table=self.table,
            number=number,
            train=np.flatnonzero(self._folds != number),
            test=np.flatnonzero(self._folds == number),
        )

    def baseline(self, name: str, fold: int, seed: int) -> float:
        """Tunes and scores a baseline, in its own environment."""
        source, target = self.folder / "baselines.npz", self.folder / "baseline.json"
        if not source.exists():
            numbers = [self.table[column.name].to_numpy() for column in self.dataset.numeric]
            ids = [self.table[column.name].to_numpy() for column in self.dataset.categorical]
            np.savez(
                source,
                labels=self.labels,
                ids=np.stack(ids, 1),
                numerics=np.stack(numbers, 1) if numbers else np.zeros((len(self.labels), 0)),
                folds=self._folds,
            )
        what = (name, str(fold), str(seed))
        command = [
            str(environments.python_of(environments.BASELINES)),
            str(PROGRAM),
            str(source),
            str(target),
            *what,
        ]
        if subprocess.run(command, check=False).returncode != 0:
            raise EmbedpsError(f"the baseline {name} failed on fold {fold}")
        return float(json.loads(target.read_text()))


class Scores:
    """The scores of a results file, which grows with each measurement."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        """Reads what earlier runs measured.

        Args:
          path: the file; it need not exist.
          head: what the file says beside the scores.
        """
        self._path = path
        samples = json.loads(path.read_text())["samples"] if path.exists() else {}
        self.content = {**head, "samples": samples}

    def absent(
        self, sample: str, name: str, made_with: Any, seeds: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Lists the folds and seeds that are still to be measured.

        Scores that were made with something else are forgotten.
        """
        made_with = json.loads(json.dumps(made_with))  # as the file has it
        found = self._of(sample).get(name)
        if found is None or found["made_with"] != made_with:
            found = {"made_with": made_with, "auc": {}}
            self._of(sample)[name] = found
        pairs = [(fold, seed) for fold in range(num_folds(sample)) for seed in seeds]
        return [pair for pair in pairs if key(*pair) not in found["auc"]]

    def add(self, sample: str, name: str, fold: int, seed: int, auc: float) -> None:
        """Adds a score and writes the file."""
        self._of(sample)[name]["auc"][key(fold, seed)] = round(auc, 6)
        self.write()

    def describe(self, sample: str, rows: int, positives: int) -> None:
        """Sets what a sample has."""
        self.content["samples"][sample] |= {"rows": rows, "positives": positives}

    def write(self) -> None:
        """Writes the file whole: an interruption leaves the file of before."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self.content, indent=1) + "\n")
        partial.replace(self._path)

    def _of(self, sample: str) -> dict[str, Any]:
        found: dict[str, Any] = self.content["samples"].setdefault(sample, {"scores": {}})["scores"]
        return found


def num_folds(sample: str) -> int:
    """Gives the number of folds that are held out in turn."""
    return 1 if sample in GENERATED else FOLDS


def key(fold: int, seed: int) -> str:
    """Names a measurement in the file."""
    return f"fold {fold}, seed {seed}"


def measure(
    samples: Path, names: Sequence[str], options: Options, scores: Scores, run: Run
) -> bool:
    """Measures what is absent from the scores.

    Returns:
      Whether all is there; False after `options.max_secs`.
    """
    began = time.monotonic()
    for sample_name in names:
        todo = list(_todo(scores, sample_name, options))
        if not todo:
            continue
        with tempfile.TemporaryDirectory() as folder:
            sample = Sample(sample_name, samples, Path(folder), run)
            scores.describe(sample_name, len(sample.labels), int(sample.labels.sum()))
            for name, fold, seed in todo:
                if options.max_secs and time.monotonic() - began > options.max_secs:
                    return False
                if name in BASELINES:
                    auc = sample.baseline(name, fold, seed)
                else:
                    rows = sample.fold(fold)
                    # The name is the model with its flags.
                    flags = f"--preset=small --seed={seed} --model={name}".split()
                    auc = score_fold(rows.inner if options.inner else rows, flags)
                scores.add(sample_name, name, fold, seed, auc)
                print(f"{sample_name}, {name}, {key(fold, seed)}: {auc:.4f}", flush=True)
    return True


def _todo(scores: Scores, sample: str, options: Options) -> Iterator[tuple[str, int, int]]:
    program = hashlib.sha256(PROGRAM.read_bytes()).hexdigest()[:16]
    for name in () if options.inner else BASELINES:
        made_with: dict[str, Any] = {
            "packages": environments.BASELINES.packages,
            "program": program,
        }
        # Logistic regression has a single optimum.
        seeds = SEEDS if name == "LightGBM" else SEEDS[:1]
        yield from ((name, *pair) for pair in scores.absent(sample, name, made_with, seeds))
    for model in options.models:
        name = " ".join((model, *options.flags))
        preset = {**PRESETS["small"], **OF_MODELS.get(model, {})}
        made_with = {"preset": preset, "flags": options.flags}
        seeds = SEEDS[:1] if options.inner else SEEDS
        yield from ((name, *pair) for pair in scores.absent(sample, name, made_with, seeds))
