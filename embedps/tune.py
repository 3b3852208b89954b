"""Finds a good model for a small dataset: `embedps tune --data DIR --model-dir DIR --minutes 10`.

It trains models with several options on a part of the training rows, scores each on other training
rows, which are held out in turn, and then trains the best one on all training rows. The eval split
has no say: it scores the final model only.

The order of what is tried follows from the seed and the scores. The time says how much is tried.
MODEL_DIR/tuning.json has what was tried: after Ctrl-C or a kill, the same command goes on. Train
the chosen model anew, on other data too, by the flags that the last line gives.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.config_fields import check, option
from embedps.console import command_line, flags
from embedps.console.lines import say, show
from embedps.data.dataset import Dataset
from embedps.data.repeated_rows import SPLIT_APART, are_split_apart
from embedps.errors import UsageError
from embedps.run.candidates import MODELS, base_options, first_candidates
from embedps.run.config import TrainConfig
from embedps.run.evaluation_config import INNER, INNER_LOSS
from embedps.run.preparation import prepare_directory
from embedps.run.run_lock import RunLock
from embedps.run.tf_config import read_tf_config
from embedps.run.weight_scale import are_far
from embedps.scheduling.division import LedgerOptions, rows_digest, split_into_ranges
from embedps.storage.object_store import as_path, is_local

if TYPE_CHECKING:  # they import TensorFlow or NumPy
    from numpy.typing import NDArray

    from embedps.training.tuning import Search
    from embedps.training.tuning_record import Settings

_SHARE = 0.2
_FEW_ROWS, _FOLDS_OF_FEW, _FOLDS = 20_000, 5, 3
FILE_NAME = "tuning.json"
_LEAKED_AUC, _LEAKED_LOSS = 0.999, 0.03
"""Scores of held-out rows that no click model has; the loss is a share of the labels' entropy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """A search: on which data, for how long, by which score."""

    data: str = option(
        dataclasses.MISSING, "directory of the dataset, as a pipeline wrote it", metavar="DIR"
    )
    model_dir: str = option(
        dataclasses.MISSING,
        "directory of the final model, and of tuning.json, from which the search goes on",
        metavar="DIR",
    )
    minutes: float = option(
        10.0, "time of all training, with that of the final model", above=0, most=100_000
    )
    metric: str = option(
        "loss",
        "score of the inner rows to go by: loss, which is the log loss; auc; or gauc",
    )
    gauc: str | None = option(None, "the column whose groups gauc is of", metavar="COLUMN")
    models: tuple[str, ...] = option(MODELS, "models to try", metavar="NAME,…")
    seed: int = option(
        0, "seed of the shuffles and of the networks' initial values", least=0, most=2**32 - 1
    )

    def __post_init__(self) -> None:
        check(self)
        if unknown := [name for name in self.models if name not in MODELS]:
            raise UsageError(f"models must be of {', '.join(MODELS)} but has {unknown[0]!r}")
        if not self.models:
            raise UsageError("models must name a model")
        if self.metric.startswith("gauc") and self.gauc is None:
            raise UsageError("metric gauc needs --gauc COLUMN")


def main(arguments: Sequence[str], prog: str = "python -m embedps.tune") -> int:
    """Searches and trains."""
    tune(flags.read(TuneConfig, arguments, prog, __doc__))
    return 0


def tune(config: TuneConfig) -> None:
    """Searches, and trains the best candidate on all rows.

    Raises:
      UsageError: the dataset cannot be tuned on, or the model directory is of something else.
      DatasetError: a file of it cannot be read.
      EndedByUserError: a signal came.
    """
    if read_tf_config() is not None:
        raise UsageError(
            "embedps tune trains in one process, and TF_CONFIG names a cluster: unset it, and "
            "train on the cluster with the flags that it finds"
        )
    dataset = Dataset.open(config.data)
    folds = _FOLDS_OF_FEW if dataset.split("train").rows < _FEW_ROWS else _FOLDS
    base = {**base_options(dataset), "data": config.data, "seed": config.seed}
    base |= {"log_secs": 1e6} | ({"gauc": config.gauc} if config.gauc else {})
    _check_labels(dataset, base, folds)
    if not is_local(as_path(config.model_dir)):
        raise UsageError("embedps tune needs a local --model-dir: copy the final model afterwards")
    first = first_candidates(dataset, config.models)
    model_dir = prepare_directory(TrainConfig(data=config.data, model_dir=config.model_dir))
    if not (model_dir / FILE_NAME).exists() and CheckpointDirectory(model_dir).latest():
        raise UsageError(
            f"--model-dir {model_dir} has checkpoints of another run: name a new directory"
        )
    # TensorFlow takes seconds to import; wrong flags and datasets are reported before that.
    from embedps.training.tuning import Search
    from embedps.training.tuning_record import Settings

    settings = Settings(
        model_dir=model_dir,
        base={**base, "model_dir": str(model_dir)},
        folds=folds,
        share=_SHARE,
        metric=INNER + config.metric,
        secs=60 * config.minutes,
        identity={
            "format": "embedps.tuning",
            "rows": rows_digest(dataset, "train"),
            "metric": config.metric,
            "models": list(config.models),
            "seed": config.seed,
            "version": 1,
        },
    )
    lock = RunLock(model_dir)
    try:
        with command_line.sigterm_interrupts():
            search = Search(settings, dataset, first)
            if not search.record.chosen:
                say(
                    f"tunes on {dataset.split('train').rows:,} rows for {config.minutes:g} "
                    f"minutes: each candidate is scored by {settings.metric} on up to {folds} "
                    f"shares of {_SHARE:.0%}"
                )
                if are_split_apart(dataset):
                    say(SPLIT_APART)
                if told := _of_weights(dataset):
                    say(told)
                search.run()
                search.choose()
    finally:
        lock.release()
    _train(config, search, settings, dataset)


def _check_labels(dataset: Dataset, base: dict[str, Any], folds: int) -> None:
    """Checks that each inner share has labels of both kinds.

    Raises:
      UsageError: one has not, or the first label is not binary, or of one value.
    """
    import numpy as np

    if not dataset.labels or dataset.labels[0].kind != "binary":
        raise UsageError(
            f"embedps tune needs a binary label first, which {dataset.directory} lacks"
        )
    labels = _read(dataset, dataset.label)
    values = np.unique(np.concatenate([np.zeros(0), *labels.values()]))
    if len(known := values[~np.isnan(values)]) == 1:
        raise UsageError(
            f"the label {dataset.label} of {dataset.directory} is {known[0]:g} in all training "
            "rows: there is nothing to learn"
        )
    for fold in range(folds):
        options = LedgerOptions(
            batch_rows=base["batch_size"],
            unit_rows=base["unit_rows"],
            inner_share=_SHARE,
            inner_fold=fold,
            inner=True,
        )
        ranges = split_into_ranges(dataset, options)
        held = np.concatenate([labels[path][first : first + n] for path, first, n in ranges])
        held = held[~np.isnan(held)]
        if not len(held) or not (held > 0.5).any() or not (held <= 0.5).any():
            raise UsageError(
                f"each of the {folds} inner shares must have positives and negatives, but one of "
                f"{len(held):,} rows has {int((held > 0.5).sum()):,} positives: "
                f"{dataset.directory} is too small to tune on, train with --preset small"
            )


def _read(dataset: Dataset, column: str) -> dict[str, NDArray[Any]]:
    """Reads a column of the rows to train on, by file."""
    import pyarrow.parquet as pq

    from embedps.data.arrow_errors import naming

    found = {}
    for file in dataset.split("train").files:
        path = dataset.absolute_path(file)
        with naming(path):
            found[str(path)] = pq.read_table(path, columns=[column])[0].to_numpy()
    return found


def _of_weights(dataset: Dataset) -> str | None:
    """Says that weights far from 1 move all learning rates, if they are."""
    import numpy as np

    weight = dataset.labels[0].weight or dataset.weight
    if not weight:
        return None
    weights = np.concatenate([*_read(dataset, weight).values()])
    if not are_far(weights):
        return None
    mean = weights.mean(dtype=np.float64)
    return (
        f"warning: the weights {weight} have a mean of {mean:g}, and multiply the loss, so that "
        "the learning rates to try do not fit: divide the weights by their mean"
    )


def _entropy(dataset: Dataset) -> float:
    """Computes the log loss of who predicts the share of positives for all rows."""
    import numpy as np

    labels = np.concatenate([*_read(dataset, dataset.label).values()])
    share = float(labels[~np.isnan(labels)].mean(dtype=np.float64))
    return -share * math.log(share) - (1 - share) * math.log(1 - share) if 0 < share < 1 else 0.0


def _is_too_good(metric: str, score: float, dataset: Dataset) -> bool:
    """Tells whether a column may be made of the label."""
    if metric != INNER_LOSS:
        return metric == f"{INNER}auc" and score > _LEAKED_AUC
    return score < _LEAKED_LOSS * _entropy(dataset)


def _is_useless(metric: str, score: float, dataset: Dataset) -> bool:
    """Tells whether the share of positives alone, or chance, does as well."""
    if metric != INNER_LOSS:
        return metric in (f"{INNER}auc", f"{INNER}gauc") and score <= 0.5
    return score >= _entropy(dataset)


def _train(config: TuneConfig, search: Search, settings: Settings, dataset: Dataset) -> None:
    """Trains the chosen candidate on all rows, and says what it is and why."""
    from embedps.training.trainer import Trainer
    from embedps.training.tuning import final_run

    candidate = search.chosen
    say(search.reason())
    if _is_too_good(settings.metric, search.record.chosen["score"], dataset):
        say(
            "warning: that model tells the labels of held-out rows almost without error: see that "
            "no column is made of the label, or known only after it"
        )
    if _is_useless(settings.metric, search.record.chosen["score"], dataset):
        say(
            "warning: that model does not predict held-out rows better than the share of positives "
            "alone: give more --minutes, or data that the label depends on"
        )
    run = final_run(candidate, settings, dataset)
    trainer = Trainer(run.recommender(dataset), dataset, run.config)
    show(str(trainer.fit()))
    where = f"--data {shlex.quote(config.data)} --model-dir DIR"
    say(f"train it anew by: embedps train {where} {search.command(candidate)}")


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
