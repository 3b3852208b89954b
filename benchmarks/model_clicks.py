"""Scores models of clicks beside baselines: `python -m benchmarks.model_clicks --samples DIR`.

On each sample with clicks or ratings, in folds: the models with `--preset small`, a tuned logistic
regression over hashed ids, and a tuned LightGBM. Two generated logs of more rows are scored like
the samples, on one fold.

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import child, environments
from benchmarks.generated_ads import write_ads
from benchmarks.harness import (
    DIR,
    Benchmark,
    Content,
    Options,
    Run,
    main,
    unfinished,
)
from benchmarks.layout import Part, Table
from benchmarks.model_folds import Fold, score_fold
from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.errors import EmbedpsError, UsageError
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
NAMES = (*SAMPLES, *GENERATED)
BASELINES = ("logistic regression", "LightGBM")
PROGRAM = Path(__file__).parent / "baselines" / "clicks.py"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """What is scored."""

    samples: str = option(dataclasses.MISSING, "the folder of the real samples", metavar=DIR)
    only: tuple[str, ...] = option(NAMES, "the others keep their results", some_of=NAMES)
    models: tuple[str, ...] = option(
        ("logistic_regression", "fm", "wide_deep", "deepfm"), "of the zoo"
    )
    flags: str | None = option(None, "of the models, after the preset", metavar="'--FLAG …'")
    inner: bool = option(
        False, "score one seed on rows split off the rows to train on, to choose settings by"
    )
    max_secs: float = option(0.0, "begin no measurement later; 0 is no limit", least=0)


class Sample:
    """A sample's rows and their folds."""

    def __init__(self, name: str, samples: Path, folder: Path) -> None:
        """Makes a dataset of the sample's file, or of a log that it generates.

        Args:
          name: one of SAMPLES or of GENERATED.
          samples: the folder of the real samples.
          folder: for the dataset and the baselines' input.
        """
        schema, log = self._log(name, samples, folder)
        made = folder / "set"
        where = ("--input", log, "--output", str(made), "--num-shards", "1")
        child.run("embedps.pipelines.ingest", "--schema", schema, *where, "--eval-fraction", "0.01")
        self.folder = folder
        self.dataset = Dataset.open(made)
        paths = [p for split in self.dataset.splits for p in self.dataset.paths(split)]
        self.table = pa.concat_tables([pq.read_table(path) for path in paths])
        self._folds = np.random.default_rng(0).integers(0, FOLDS, self.table.num_rows)
        self.labels = self.table[self.dataset.label].to_numpy()

    @staticmethod
    def _log(name: str, samples: Path, folder: Path) -> tuple[str, str]:
        if name in SAMPLES:
            schema, file = SAMPLES[name]
            return schema, str(samples / file)
        if name == "generated ads":
            return write_ads(folder, GENERATED_ROWS, seed=7)
        log = str(folder / "log.tsv.gz")
        child.run(
            "embedps.pipelines.generate", f"--rows={GENERATED_ROWS}", "--seed=7", f"--output={log}"
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
    """The scores of a result, which grows with each measurement."""

    def __init__(self, run: Run, *, inner: bool = False) -> None:
        """Reads what earlier runs measured.

        Raises:
          UsageError: they scored other rows.
        """
        self._run = run
        earlier = run.earlier()
        if earlier.get("inner", inner) != inner:
            raise UsageError(f"--output {run.path} has scores of other rows: name another file")
        self.content = {"inner": inner, "samples": earlier.get("samples", {})}

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
        """Adds a score and writes the result."""
        self._of(sample)[name]["auc"][key(fold, seed)] = round(auc, 6)
        self._run.save(self.content)

    def describe(self, sample: str, rows: int, positives: int) -> None:
        """Sets what a sample has."""
        self.content["samples"][sample] |= {"rows": rows, "positives": positives}

    def _of(self, sample: str) -> dict[str, Any]:
        found: dict[str, Any] = self.content["samples"].setdefault(sample, {"scores": {}})["scores"]
        return found


def num_folds(sample: str) -> int:
    """Gives the number of folds that are held out in turn."""
    return 1 if sample in GENERATED else FOLDS


def key(fold: int, seed: int) -> str:
    """Names a measurement in the file."""
    return f"fold {fold}, seed {seed}"


def measure(config: Config, run: Run) -> Content:
    """Measures what is absent from the scores; `is_whole` tells whether all is there."""
    began = time.monotonic()
    scores = Scores(run, inner=config.inner)
    for sample_name in config.only:
        todo = list(_todo(scores, sample_name, config))
        if not todo:
            continue
        with tempfile.TemporaryDirectory() as folder:
            sample = Sample(sample_name, Path(config.samples), Path(folder))
            scores.describe(sample_name, len(sample.labels), int(sample.labels.sum()))
            for name, fold, seed in todo:
                if 0 < config.max_secs < time.monotonic() - began:
                    return scores.content | {"is_whole": False}
                if name in BASELINES:
                    auc = sample.baseline(name, fold, seed)
                else:
                    rows = sample.fold(fold)
                    # The name is the model with its flags.
                    flags = f"--preset=small --seed={seed} --model={name}".split()
                    auc = score_fold(rows.inner if config.inner else rows, flags)
                scores.add(sample_name, name, fold, seed, auc)
                print(f"{sample_name}, {name}, {key(fold, seed)}: {auc:.4f}", flush=True)
    return scores.content | {"is_whole": True}


def _todo(scores: Scores, sample: str, config: Config) -> Iterator[tuple[str, int, int]]:
    program = hashlib.sha256(PROGRAM.read_bytes()).hexdigest()[:16]
    for name in () if config.inner else BASELINES:
        made_with: dict[str, Any] = {
            "packages": environments.BASELINES.packages,
            "program": program,
        }
        # Logistic regression has a single optimum.
        seeds = SEEDS if name == "LightGBM" else SEEDS[:1]
        yield from ((name, *pair) for pair in scores.absent(sample, name, made_with, seeds))
    flags = tuple((config.flags or "").split())
    for model in config.models:
        name = " ".join((model, *flags))
        preset = {**PRESETS["small"], **OF_MODELS.get(model, {})}
        made_with = {"preset": preset, "flags": flags}
        seeds = SEEDS[:1] if config.inner else SEEDS
        yield from ((name, *pair) for pair in scores.absent(sample, name, made_with, seeds))


def layout(content: Content) -> list[Part]:
    """Lays out the AUC of the models beside that of the baselines."""
    parts: list[Part] = []
    for sample, found in content["samples"].items():
        aucs = {name: by_fold(of["auc"], num_folds(sample)) for name, of in found["scores"].items()}
        whole = {name: auc for name, auc in aucs.items() if auc is not None}
        others = [name for name in BASELINES if name in whole]
        rows = []
        for name, auc in whole.items():
            folds, seeds = auc.mean(1), auc.mean(0)
            error = f"{standard_error(folds):.4f}" if len(folds) > 1 else ""
            minus = [_difference(folds - whole[other].mean(1)) for other in others if other != name]
            minus = minus if name not in BASELINES else []
            between = f"{seeds.min():.4f} to {seeds.max():.4f}" if len(seeds) > 1 else ""
            cells = [name, f"{folds.mean():.4f}", error, between, *minus]
            rows.append(cells + [""] * (4 + len(others) - len(cells)))
        title = f"{sample}: {found['rows']:,} rows, {found['positives']:,} positive"
        heads = [title, "AUC", "standard error", "seeds", *(f"minus {name}" for name in others)]
        parts.append(Table(heads=heads, rows=rows))
    parts.append(
        f"AUC of the rows held out, means of {FOLDS} folds and of {len(SEEDS)} seeds. Standard "
        "errors, in brackets those of differences, are over folds. Baselines are tuned in the same "
        "run, in each fold."
    )
    return parts


def _difference(folds: npt.NDArray[np.float64]) -> str:
    error = f" ({standard_error(folds):.4f})" if len(folds) > 1 else ""
    return f"{folds.mean():+.4f}{error}"


def by_fold(aucs: Mapping[str, float], folds: int) -> npt.NDArray[np.float64] | None:
    """Arranges scores, float64 [folds, seeds]; None if one is absent."""
    seeds = [seed for seed in SEEDS if key(0, seed) in aucs]
    found = [[aucs.get(key(fold, seed)) for seed in seeds] for fold in range(folds)]
    if not seeds or any(auc is None for fold in found for auc in fold):
        return None
    return np.array(found, np.float64)


def standard_error(values: npt.NDArray[np.float64]) -> float:
    """The standard error of the mean of one value per fold."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout, failure=unfinished)


if __name__ == "__main__":
    main(BENCHMARK)
