"""Compares two trained models on the same examples: `embedps compare MODEL1 MODEL2`.

It says which has the better AUC and log loss, by how much, on which slices, and whether that may be
chance. The same checkpoints and examples give the same numbers.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedps.checkpoint.refs import manifest_option
from embedps.config_fields import MAX_COUNT, option
from embedps.console import command_line, flags
from embedps.console.lines import say
from embedps.console.tables import make_console, make_table
from embedps.errors import UsageError
from embedps.run.opened_run import ModelOptions, open_run
from embedps.score_names import TITLES
from embedps.storage.file_io import write_bytes

if TYPE_CHECKING:  # these import TensorFlow or NumPy, which --help does not wait for
    from numpy.typing import NDArray

    from embedps.evaluation.paired_scores import Difference, Examples

_TITLES = {**TITLES, "weighted_logloss": "weighted"}
_PREDICTED = "predicted/"
_LEVEL = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareConfig(ModelOptions):
    """A comparison: of which checkpoints, on which examples, and by which slices."""

    first: str = option(
        dataclasses.MISSING, "the first model directory", metavar="MODEL1", positional=True
    )
    second: str = option(dataclasses.MISSING, "the second one", metavar="MODEL2", positional=True)
    first_number: int | str | None = manifest_option(
        None, "the first model's checkpoint, or a ref (default: the newest)"
    )
    second_number: int | str | None = manifest_option(
        None, "the second model's checkpoint, or a ref (default: the newest)"
    )
    split: str = option("eval", "the split to score", metavar="NAME")
    label: tuple[str, ...] = option(
        (),
        "the binary labels to compare by (default: those that both predict)",
        metavar="NAME",
        several=True,
    )
    slices: tuple[str, ...] = option(
        (),
        "columns of ids, keys or the time (its hour of the day, UTC): compare for each value too",
        metavar="COLUMN",
        several=True,
    )
    max_slices: int = option(
        20, "the most frequent values per column; all others are one slice", least=1, most=1000
    )
    gauc: str | None = option(
        None, "also compare by the mean AUC per value of this column, such as a user's id",
        metavar="COLUMN",
    )  # fmt: skip
    max_examples: int = option(
        10_000_000,
        "score at most about so many, of units evenly spread over the split; memory is 20 bytes "
        "per example, and 16 per slice's column",
        least=1,
        most=MAX_COUNT,
    )
    batch_size: int = option(4096, "examples per batch", least=1, most=MAX_COUNT)
    output: Path | None = option(None, "a JSON file to write", metavar="FILE")


def main(arguments: Sequence[str], prog: str = "python -m embedps.compare") -> int:
    """Compares two models."""
    compare(flags.read(CompareConfig, arguments, prog, __doc__))
    return 0


def compare(config: CompareConfig) -> dict[str, Any]:
    """Compares two models; prints a table per label.

    Returns:
      What `--output` gets.

    Raises:
      UsageError: a directory is of no run, a column is not there, or no label is common to both.
      CheckpointError: a checkpoint is not there, is damaged, or is of another model.
    """
    found = [
        _Scored(config, directory, number)
        for directory, number in (
            (config.first, config.first_number),
            (config.second, config.second_number),
        )
    ]
    labels = [name for name in found[0].predictions if name in found[1].predictions]
    if not labels:
        raise UsageError(
            f"the models must predict a common binary label: {config.first} predicts "
            f"{', '.join(found[0].predictions) or 'none'}, {config.second} "
            f"{', '.join(found[1].predictions) or 'none'}"
        )
    results = [result for label in labels for result in _label(config, label, found)]
    document = {
        "format": "embedps.compare",
        "first": found[0].told,
        "second": found[1].told,
        "split": config.split,
        "results": results,
    }
    for label in labels:
        _show([result for result in results if result["label"] == label], label)
    if config.output is not None:
        write_bytes(config.output, (json.dumps(document, indent=1) + "\n").encode())
    return document


class _Scored:
    """What a model predicts of a split.

    Attributes:
      told: its directory and its checkpoint.
      dataset: of the examples.
      columns: of the examples by name: labels, weights, slices and groups.
      predictions: by label.
    """

    def __init__(self, config: CompareConfig, directory: str, number: int | str | None) -> None:
        """Scores the split."""
        data = config.data
        if data is None and directory != config.first:
            data = str(open_run(config.first, model=config.model).dataset.directory)
        run = open_run(directory, data=data, model=config.model)
        self.dataset = dataset = run.dataset
        manifest = run.manifest(number)
        wanted = [c for c in (*config.slices, config.gauc) if c is not None]
        binary = [label for label in dataset.labels if label.kind == "binary"]
        if unknown := set(config.label) - {label.name for label in binary}:
            raise UsageError(
                f"--label {min(unknown)} must be a binary label of {dataset.directory}: it has "
                f"{', '.join(label.name for label in binary) or 'none'}"
            )
        labels = [label for label in binary if label.name in (config.label or label.name)]
        # TensorFlow takes seconds to import; wrong flags and files are reported before that.
        import numpy as np

        from embedps.evaluation.evaluator import eval_ledger
        from embedps.evaluation.example_scores import read_scores
        from embedps.evaluation.loaded_model import load_from
        from embedps.evaluation.sliced_scores import HOUR_MS, check_columns

        check_columns(dataset, wanted)
        ledger = eval_ledger(dataset, split=config.split, batch_rows=config.batch_size)
        units = list(iter(ledger.take, None))
        rows = sum(unit.num_rows for unit in units)
        units = units[:: max(1, math.ceil(rows / config.max_examples))]
        model = load_from(run, number=manifest.number, uncalibrated=True)
        self.told = {"model_dir": directory, "number": manifest.number, "step": manifest.step}
        own = [label.weight or dataset.weight for label in labels]
        names = [*(label.name for label in labels), *(name for name in own if name), *wanted]
        try:
            tables = model.example_scores(
                dataset,
                units,
                batch_rows=config.batch_size,
                columns=names,
                prefix=_PREDICTED,
            )
            total = sum(unit.num_rows for unit in units)
            joined = read_scores(tables, total, f"scoring {directory}:")
        finally:
            model.collection.drop()
        self.columns = {name: joined[name] for name in names}
        self.weights = dict(zip([label.name for label in labels], own, strict=True))
        if dataset.timestamp in self.columns:
            hours = self.columns[dataset.timestamp] // HOUR_MS % 24
            self.columns[dataset.timestamp] = hours
        self.predictions: dict[str, NDArray[Any]] = {}
        for label in labels:
            is_score = label.name == (model.click_label or dataset.label)
            found = joined.get(_PREDICTED + label.name)
            if found is None and is_score:
                found = joined.get(f"{_PREDICTED}score")
            if found is not None and found.dtype == np.float32:
                self.predictions[label.name] = _chances(directory, label.name, found)


def _chances(directory: str, label: str, found: NDArray[Any]) -> NDArray[Any]:
    wrong = found[~((found >= 0) & (found <= 1))]
    if len(wrong):
        raise UsageError(
            f"{directory} must predict chances from 0 to 1 of {label!r} but predicts {wrong[0]}: "
            "end the model's call with tf.sigmoid, or compare models that rank by what `embedps "
            "evaluate` tells of them"
        )
    return found


def _label(config: CompareConfig, label: str, found: Sequence[_Scored]) -> Iterator[dict[str, Any]]:
    """Compares by a label: over all examples that have it, then by slice."""
    import numpy as np

    from embedps.evaluation.paired_scores import Examples, is_noise, slices
    from embedps.evaluation.sliced_scores import known_groups, slice_name

    dataset = found[0].dataset
    columns, weight = found[0].columns, found[0].weights[label]
    if not np.array_equal(columns[label], found[1].columns[label], equal_nan=True):
        raise UsageError(f"{label!r} must be the same in the data of both: give --data")
    every = Examples(
        labels=columns[label],
        first=found[0].predictions[label],
        second=found[1].predictions[label],
        weights=columns[weight] if weight else None,
        columns={name: columns[name] for name in {*config.slices, *_of(config.gauc)}},
    ).of(np.flatnonzero(~np.isnan(columns[label])))
    of_groups = None
    if group := config.gauc:
        values = every.columns[group]
        of_groups = every.of(known_groups(dataset, group, values, dataset.missing_id))
    yield _result(label, every, of_groups, group or "")
    parts = [
        {
            "slice": {
                "column": name,
                "value": slice_name(dataset, name, value, dataset.missing_id),
            },
            **_result(label, every.of(rows)),
        }
        for name, value, rows in slices(every.columns, config.slices, config.max_slices)
    ]
    for score in ("auc", "logloss", "weighted_logloss"):
        # Of many slices, some differ by chance: each must differ by more than one alone.
        mine = [part["scores"][score] for part in parts if score in part["scores"]]
        noise = is_noise([math.nan if m["p_value"] is None else m["p_value"] for m in mine])
        for each, is_chance in zip(mine, noise, strict=True):
            each["better"] = 0 if is_chance else each["better_if_real"]
    yield from parts


def _of(name: str | None) -> tuple[str, ...]:
    return () if name is None else (name,)


def _result(
    label: str, examples: Examples, of_groups: Examples | None = None, groups: str = ""
) -> dict[str, Any]:
    from embedps.evaluation.paired_scores import calibration

    differences = examples.differences()
    if of_groups is not None:
        differences |= of_groups.group_difference(groups)
    scores = {name: _told(each) for name, each in differences.items()}
    both = (examples.first, examples.second)
    return {
        "label": label,
        "examples": len(examples.labels),
        "positives": float(examples.labels.sum(dtype="float64")),
        "calibration": [_finite(calibration(examples.labels, p)) for p in both],
        "scores": scores,
    }


def _told(difference: Difference) -> dict[str, Any]:
    low, high = difference.interval
    is_real = difference.p_value <= _LEVEL
    return {
        "first": _finite(difference.first),
        "second": _finite(difference.second),
        "difference": _finite(difference.value),
        "interval": [_finite(low), _finite(high)],
        "p_value": _finite(difference.p_value),
        "better": difference.better if is_real else 0,
        "better_if_real": difference.better,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _show(results: Sequence[dict[str, Any]], label: str) -> None:
    names = list(results[0]["scores"])
    scores = [title for n in names for title in (f"{_TITLES[n]} 1", "2", "2 - 1 (95%)", "better")]
    table = make_table(label, "slice", "examples", "positives", "calibration", *scores)
    for result in results:
        part = result.get("slice")
        cells = [
            f"{part['column']} {part['value']}" if part else "all",
            f"{result['examples']:,}",
            f"{result['positives']:,.0f}",
            " / ".join(_number(each, 3) for each in result["calibration"]),
        ]
        for name in names:
            cells += _cells(result["scores"].get(name))
        table.add_row(*cells)
    make_console().print(table)
    for name in names:
        say(f"{label}: {_verdict(_TITLES[name], results[0]['scores'][name])}")
    if "auc" not in names:
        say(f"{label}: there is no AUC or GAUC of labels between 0 and 1")


def _cells(score: Mapping[str, Any] | None) -> list[str]:
    if score is None or score["difference"] is None:
        return ["", "", "", ""]
    better = {0: "noise", 1: "model 1", 2: "model 2"}[score["better"]]
    if score["p_value"] is None:
        better = "too few"
    first, second = (_number(score[each], 5) for each in ("first", "second"))
    return [first, second, _difference(score), better]


def _difference(score: Mapping[str, Any]) -> str:
    low, high = score["interval"]
    if low is None:
        return f"{score['difference']:+.5f}"
    return f"{score['difference']:+.5f} ({_number(low, 5, '+')} to {_number(high, 5, '+')})"


def _verdict(title: str, score: Mapping[str, Any]) -> str:
    if score["difference"] is None:
        return f"{title} is not defined"
    if score["p_value"] is None:
        return f"the difference in {title}, {_difference(score)}, is of too few examples to tell"
    if not score["better"]:
        return f"the difference in {title}, {_difference(score)}, may be noise"
    return f"model {score['better']} has the better {title}: {_difference(score)}"


def _number(value: float | None, digits: int, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.{digits}f}"


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
