"""Fits the layer that makes chances of a model's predictions: `embedps calibrate MODEL`.

MODEL/calibration.json is the layer. `embedps evaluate --once`, predict, export and serve apply it
to the checkpoint that it was fitted on, and refuse another. With --negative-rate nothing is fitted:
the layer undoes that only a share of the negatives was kept, and holds for every checkpoint.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any, Literal

from embedps.checkpoint.refs import manifest_option
from embedps.config_fields import MAX_COUNT, option
from embedps.console import command_line, flags
from embedps.console.lines import say
from embedps.engine.calibration import Calibration, Curve
from embedps.errors import UsageError
from embedps.run.calibration_file import FILE_NAME, write_calibration
from embedps.run.opened_run import ModelOptions, open_run

_PREDICTED = "predicted/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrateConfig(ModelOptions):
    """A calibration: of which checkpoint, by which method, on which examples."""

    model_dir: str = option(
        dataclasses.MISSING, "the model directory", metavar="MODEL", positional=True
    )
    method: Literal["platt", "isotonic"] = option(
        "platt",
        "platt: a scale and a shift of the logit, which keep the order; isotonic: a curve of up to "
        "1,024 knots, for tens of thousands of examples and more",
    )
    negative_rate: float = option(
        0.0,
        "fit nothing: the training rows have this share of the negatives, and all positives",
        least=0,
        below=1,
    )
    number: int | str | None = manifest_option(
        None, "the checkpoint's number, or a ref (default: the newest)"
    )
    split: str = option("eval", "the split to fit on, which must not be trained on", metavar="NAME")
    max_examples: int = option(
        5_000_000,
        "fit on at most about so many, of units evenly spread over the split; 150 bytes of memory "
        "each",
        least=1,
        most=MAX_COUNT,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split == "train":
            raise UsageError("split must be one that is not trained on but is 'train'")


def main(arguments: Sequence[str], prog: str = "python -m embedps.calibrate") -> int:
    """Fits a layer."""
    calibrate(flags.read(CalibrateConfig, arguments, prog, __doc__))
    return 0


def calibrate(config: CalibrateConfig) -> Calibration:
    """Fits a layer and writes it beside the checkpoints.

    Raises:
      UsageError: the directory is of no run, the model predicts no binary label, or nothing can be
        fitted.
      CheckpointError: the checkpoint is not there, is damaged, or is of another model.
    """
    run = open_run(config.model_dir, data=config.data, model=config.model)
    manifest = run.manifest(config.number)
    split = run.dataset.split(config.split)
    # TensorFlow takes seconds to import; wrong flags and files are reported before that.
    from embedps.evaluation.evaluator import EVAL_BATCH_ROWS, eval_ledger
    from embedps.evaluation.example_scores import read_scores
    from embedps.evaluation.loaded_model import load_from

    model = load_from(run, number=manifest.number, uncalibrated=True)
    try:
        names = model.label_predictions(run.dataset)
        if not names:
            raise UsageError(f"{config.model_dir} must predict a binary label, by name or as score")
        if config.negative_rate:
            curve = Curve(shift=math.log(config.negative_rate))
            made = Calibration(
                method="rate",
                curves=dict.fromkeys(names.values(), curve),
                data={"negative_rate": config.negative_rate},
            )
        else:
            ledger = eval_ledger(run.dataset, split=config.split, batch_rows=EVAL_BATCH_ROWS)
            units = list(iter(ledger.take, None))
            units = units[:: max(1, math.ceil(split.rows / config.max_examples))]
            own = {label.name: label.weight or run.dataset.weight for label in run.dataset.labels}
            columns = [*names, *(own[name] for name in names if own[name])]
            tables = model.example_scores(
                run.dataset, units, batch_rows=EVAL_BATCH_ROWS, columns=columns, prefix=_PREDICTED
            )
            examples = sum(unit.num_rows for unit in units)
            found = read_scores(tables, examples, "scoring:")
            curves = {
                prediction: _fit(config, label, found, _PREDICTED + prediction, own[label])
                for label, prediction in names.items()
            }
            about = {"directory": str(run.dataset.directory), "split": config.split}
            made = Calibration(
                method=config.method,
                curves=curves,
                checkpoint={
                    "number": manifest.number,
                    "step": manifest.step,
                    "history": manifest.history,
                },
                data={**about, "examples": examples, "rows": ledger.state()["dataset"]},
            )
    finally:
        model.collection.drop()
    write_calibration(run.path, made)
    say(f"{run.path / FILE_NAME}: {made.describe()}")
    return made


def _fit(
    config: CalibrateConfig, label: str, found: dict[str, Any], prediction: str, weight: str
) -> Curve:
    """Fits a label's curve, and prints what a curve of every second example gives the others."""
    import numpy as np
    import tensorflow as tf

    from embedps.evaluation.calibration_fit import fit
    from embedps.evaluation.sliced_scores import slice_scores

    there = np.flatnonzero(~np.isnan(found[label]))
    y, p = found[label][there].astype(np.float64), found[prediction][there]
    w = found[weight][there].astype(np.float64) if weight else None
    if len(y) and not ((p >= 0) & (p <= 1)).all():
        raise UsageError(
            f"the predictions of {label!r} must be chances from 0 to 1: end with sigmoid"
        )
    curve = fit(config.method, p, y, w)

    def half(values: Any, first: int) -> Any:
        return None if values is None else values[first::2]

    try:
        tried = fit(config.method, half(p, 0), half(y, 0), half(w, 0))
    except UsageError:  # a half may lack positives
        return curve
    mapped = tried.apply(tf.constant(half(p, 1))).numpy()
    before, after = (slice_scores(each, half(y, 1), half(w, 1)) for each in (half(p, 1), mapped))
    say(
        f"{label}: log loss {before['logloss']:.5f} -> {after['logloss']:.5f}, calibration "
        f"{before['calibration']:.4f} -> {after['calibration']:.4f}, on every second example, "
        "fitted on the others"
    )
    return curve


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
