"""The candidates of `embedps tune`: models with options, and the neighbors of one.

A candidate is a model and options over a base. It is made of flags, so that `embedps train` can
train it too.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from embedps.config_fields import options_of, values_of
from embedps.console.flags import flag_name
from embedps.data.acting_pairs import acting_pairs
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import DataFile
from embedps.data.number_bins import binned_numbers, code_numbers
from embedps.run.config import TrainConfig
from embedps.run.model_module import find_model
from embedps.run.presets import OF_MODELS, PRESETS, WATCHING
from embedps.run.run_config import RunConfig

MODELS = ("logistic_regression", "fm", "wide_deep", "deepfm", "dcn_v2", "dlrm")
"""Those of the zoo that score clicks by any columns, the simplest first."""

FEW_ROWS = 200_000
"""From so many rows on, batches are larger."""

_MAX_CROSSES = 10
_VARIANCE = 2.0
"""Of logits, which L2 takes for granted."""
_MORE_EPOCHS, _MOST_VISITS = 4, 4_000_000
"""Times the epochs of others, which settle weights under L2; rows that all epochs visit then."""
_RATE_OF_ALL, _HIGHEST_RATE, _DENSE_RATE_OF_ALL = 60.0, 10.0, 0.3
"""Of all of a row's weights together, of one of them, and of all of the numbers' ones, under L2."""
_MANY_INPUTS = 40
"""From so many inputs on, the rates of SGD fall in proportion to them."""
_ADAGRAD = {"sparse_optimizer": "rowwise_adagrad", "sparse_learning_rate": 0.05}
_DECAYED = {"sparse_learning_rate": 3.0, "row_weight_decay": 0.002}
"""Rows that L2 keeps near 0, rather than few and small steps: ids of many examples learn more."""
_SHRUNK = {"numeric_l2": 30.0, "dense_learning_rate": 0.01}
"""For few positives, of which free weights of numbers learn the noise too."""
_RIDGE = {"row_l2": None}
"""L2 of all weights, which no number of steps stands for: rare ids and frequent ones follow it.

`_ridge` has its options. Its large steps swing until the rates fall, so no epoch before the last
tells that it overfits: it trains for as many as it is given, without a watch.
"""
_WIDE = {"deep_mlp": (256, 128), "top_mlp": (256, 128), "bottom_mlp": (256, 64)}
_NARROW = {name: PRESETS["small"][name] for name in _WIDE}
_DEEPER = {
    **_WIDE,
    "sparse_learning_rate": 0.1,
    "dropout": 0.1,
    "dense_learning_rate": 0.003,
    "dense_weight_decay": 1.0,
}
"""For labels that a few numbers decide together, in ways that no line and no pair has."""
_NUMBERS = {
    **_DEEPER,
    "sparse_learning_rate": 0.003,
    "numeric_bins": 0,
    "numeric_standard": True,
}
"""For labels that ratios of numbers decide, of which bins tell little: rows hardly learn."""
_FREER = {"sparse_learning_rate": 3.0, "numeric_bins": 48, "dense_learning_rate": 0.01}
_FREEST = {"sparse_learning_rate": 10.0, "numeric_bins": 48, "dense_learning_rate": 0.03}
"""For labels that follow from what a row shows: SGD of few steps shrinks weights as L2 does."""
_PAIRS, _CODES = "pairs", "codes"
_LISTED: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("logistic_regression", {}),
    ("logistic_regression", {**_DECAYED, "row_weight_decay": 0.006, **_SHRUNK}),
    ("logistic_regression", _RIDGE),
    ("logistic_regression", _DECAYED),
    ("logistic_regression", {**_RIDGE, "cross": _PAIRS}),
    ("wide_deep", {}),
    ("wide_deep", _DEEPER),
    ("wide_deep", _NUMBERS),
    ("logistic_regression", {**_FREER, "cross": _PAIRS}),
    ("dcn_v2", {**_ADAGRAD, **_WIDE, "dropout": 0.1, "embedding_dim": 16}),
    ("deepfm", {**_ADAGRAD, "embedding_dim": 16}),
    ("logistic_regression", {**_FREEST, "cross": _PAIRS}),
    ("wide_deep", {"cross": _PAIRS}),
    ("wide_deep", {"cross": _CODES}),
    ("wide_deep", {"list_combiner": "sum"}),
    ("wide_deep", {**_WIDE, "numeric_bins": 48, "dropout": 0.3, "cross": _PAIRS}),
    ("dcn_v2", {**_ADAGRAD, "dropout": 0.3}),
    ("wide_deep", {**_ADAGRAD, **_WIDE, "numeric_bins": 48, "numeric_waves": 8, "dropout": 0.1}),
    ("logistic_regression", {**_FREER, "list_combiner": "sum", "cross": _PAIRS}),
    ("wide_deep", {**_WIDE, "numeric_bins": 48, "dropout": 0.3}),
    ("logistic_regression", {**_FREER, "cross": _CODES}),
    ("deepfm", {}),
    ("dlrm", {**_ADAGRAD, "sparse_learning_rate": 0.02}),
    ("fm", {}),
    ("logistic_regression", {"cross": _PAIRS}),
    ("logistic_regression", _SHRUNK),
    ("dcn_v2", {}),
    ("wide_deep", {"min_count": 5, "sparse_learning_rate": 0.3}),
    ("wide_deep", {"embedding_dim": 4, "dense_learning_rate": 0.003}),
    ("fm", {**_ADAGRAD, "embedding_dim": 16}),
)
"""What is tried first.

_PAIRS are those of columns that act together; _CODES are numbers as ids.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model and its options.

    Attributes:
      model: of the zoo.
      options: of the run and of the model, by name, where they differ from the base.
    """

    model: str
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Tells candidates apart; `of_key` makes the candidate of it."""
        return json.dumps([self.model, dict(sorted(self.options.items()))])

    @classmethod
    def of_key(cls, key: str) -> Candidate:
        """Makes a candidate of its key."""
        model, options = json.loads(key)
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        return cls(model=model, options=values)

    def run(self, base: Mapping[str, Any]) -> RunConfig:
        """Makes the configs of a run.

        Args:
          base: values of options, which the candidate's replace.
        """
        module = find_model(self.model)
        values = {**base, **of_model(self.model), **self.options}
        made = []
        for kind in (TrainConfig, module.Config):
            names = {option.name for option in options_of(kind)}
            made.append({name: value for name, value in values.items() if name in names})
        config = TrainConfig.from_options(**made[0], model=self.model)
        return RunConfig(config=config, model_config=module.Config(**made[1]))

    def with_known(self, options: Mapping[str, Any]) -> Candidate:
        """Gives the same model with those of other options that it or a run has."""
        kinds = (TrainConfig, find_model(self.model).Config)
        known = {option.name for kind in kinds for option in options_of(kind)}
        return Candidate(model=self.model, options={k: v for k, v in options.items() if k in known})

    def flags(self) -> str:
        """Gives the options as flags."""
        shown = [f"--model {self.model}"]
        for name, value in self.options.items():
            if isinstance(value, bool):
                shown.append(flag_name(name if value else f"no_{name}"))
                continue
            text = ",".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
            shown.append(f"{flag_name(name)} {text}")
        return " ".join(shown)


def of_model(model: str) -> Mapping[str, Any]:
    """Gives the preset's options of a model that differ from those of the others."""
    return OF_MODELS.get(model, {})


def base_options(dataset: Dataset) -> dict[str, Any]:
    """Gives the options that all candidates begin with: the preset's without its watch."""
    values = {k: v for k, v in PRESETS["small"].items() if k not in (*WATCHING, "keep_best")}
    if dataset.split("train").rows >= FEW_ROWS:
        values |= {"batch_size": 1024, "unit_rows": 32768, "epochs": 8}
    return values | ({} if dataset.categorical else {"cross": _columns(dataset).alone})


def first_candidates(dataset: Dataset, models: Sequence[str]) -> list[Candidate]:
    """Lists the candidates to begin with.

    Args:
      dataset: its columns tell which there are.
      models: those to try.
    """
    columns, rows = _columns(dataset), dataset.split("train").rows
    settling = settling_epochs(rows, base_options(dataset)["epochs"])
    found = []
    for model, options in _LISTED:
        if model not in models or (_is_of_numbers(options) and not dataset.numeric):
            continue
        chosen = {k: v for k, v in options.items() if k != "cross"}
        cross = columns.of(options["cross"]) if "cross" in options else columns.alone
        chosen |= {"cross": cross} if cross != columns.alone else {}
        inputs = _inputs(dataset, cross)
        if "row_l2" in options:
            chosen |= _ridge(inputs, settling)
        found.append(_made(model, _of_inputs(model, chosen, inputs), dataset))
    return list({candidate.key: candidate for candidate in found}.values())


def settling_epochs(rows: int, epochs: int) -> int:
    """Gives the epochs of weights under L2, where others have so many."""
    return epochs * max(1, min(_MORE_EPOCHS, _MOST_VISITS // max(1, epochs * rows)))


def _is_of_numbers(options: Mapping[str, Any]) -> bool:
    """Whether what tells a candidate from the others is of numbers alone."""
    return bool({"numeric_l2", "numeric_standard"} & options.keys())


def _inputs(dataset: Dataset, cross: Sequence[str]) -> int:
    """Counts the weights that a row's logit is a sum of."""
    return max(1, len(dataset.numeric) + len(dataset.categorical) + len(cross))


def _ridge(inputs: int, epochs: int) -> Mapping[str, Any]:
    """Gives the options of a logistic regression with L2 of all weights.

    The strength is that of normal weights that together give logits a variance of _VARIANCE. A
    step moves the logit by all of a row's weights, so the more there are, the smaller is the rate
    that does not swing; but the weights of rare ids fall to where L2 has them by rate * strength,
    which does not depend on the number of inputs.

    Args:
      inputs: the weights that a row's logit is a sum of.
      epochs: in which the weights settle.
    """
    strength = _round(inputs / _VARIANCE)
    return {
        "sparse_learning_rate": _round(min(_HIGHEST_RATE, _RATE_OF_ALL / inputs)),
        "dense_learning_rate": _round(min(0.01, _DENSE_RATE_OF_ALL / inputs)),
        "row_l2": strength,
        "numeric_l2": strength,
        "numeric_bins": 0,
        "numeric_standard": True,
        "epochs": epochs,
    }


def _of_inputs(model: str, options: Mapping[str, Any], inputs: int) -> Mapping[str, Any]:
    """Gives options whose rate is one at which SGD of so many rows per example does not diverge."""
    values = {**PRESETS["small"], **of_model(model), **options}
    if values["sparse_optimizer"] != "sgd" or "row_l2" in options or inputs <= _MANY_INPUTS:
        return options
    rate = values["sparse_learning_rate"] * _MANY_INPUTS / inputs
    return {**options, "sparse_learning_rate": _round(rate)}


def neighbors(candidate: Candidate, base: Mapping[str, Any], dataset: Dataset) -> list[Candidate]:
    """Lists candidates that differ from one in one way, those that often matter first.

    Args:
      candidate: whose epochs are set.
      base: as `Candidate.run` takes it.
      dataset: what it is of.
    """
    run = candidate.run(base)
    now = {**values_of(run.config), **values_of(run.model_config)}
    found = [
        _made(candidate.model, {**candidate.options, **change}, dataset)
        for change in _changes(candidate.model, now, dataset)
    ]
    return list({each.key: each for each in found if each.key != candidate.key}.values())


def _changes(model: str, now: Mapping[str, Any], dataset: Dataset) -> Iterator[Mapping[str, Any]]:
    """Gives the changes of a candidate with these values of all its options."""
    sparse, dense = now["sparse_learning_rate"], now["dense_learning_rate"]
    preset = {**PRESETS["small"], **of_model(model)}
    sgd = {name: preset[name] for name in ("sparse_optimizer", "sparse_learning_rate")}
    epochs = int(now["epochs"])
    is_wide = now.get("deep_mlp", now.get("top_mlp")) == _WIDE["deep_mlp"]
    columns, cross = _columns(dataset), tuple(now.get("cross", ()))
    if now.get("row_l2"):  # where weights settle, rates and epochs matter less
        yield {"row_l2": _round(now["row_l2"] * 2)}
        yield {"row_l2": _round(now["row_l2"] / 2)}
    yield {"sparse_learning_rate": _round(sparse / 3)}
    yield {"sparse_learning_rate": _round(sparse * 3)}
    yield {"epochs": epochs + max(1, epochs // 2)}
    yield {"epochs": max(1, epochs * 2 // 3)}
    if not now.get("row_l2"):
        yield {"row_l2": _round(_inputs(dataset, cross) / _VARIANCE)}
    yield {"dense_learning_rate": _round(dense * 3)}
    for kinds in ((), (_PAIRS,), (_CODES,), (_CODES, _PAIRS)):
        if (other := columns.of(*kinds)) != cross:
            yield {"cross": other}
    combiners = ("sum", "sqrtn", "mean")
    yield from ({"list_combiner": each} for each in combiners if each != now.get("list_combiner"))
    yield _NARROW if is_wide else _WIDE
    yield {"dropout": 0.2 if now.get("dropout", 0) >= 0.4 else 0.5}
    if now.keys() & _WIDE.keys():
        yield {"dense_weight_decay": 0.0 if now["dense_weight_decay"] else 1.0}
    yield {"embedding_dim": 2 * now.get("embedding_dim", 8)}
    yield {"min_count": 3 if now["min_count"] == 1 else 1}
    yield _ADAGRAD if now["sparse_optimizer"] == "sgd" else sgd
    yield {"dense_learning_rate": _round(dense / 3)}
    yield {"embedding_dim": max(1, now.get("embedding_dim", 8) // 2)}
    if dataset.numeric:
        bins = 48 if now.get("numeric_bins", 0) < 48 else 16
        yield {"numeric_bins": bins, "numeric_standard": False}
        yield {"numeric_l2": 0.0 if now.get("numeric_l2") else 30.0}
        yield {"numeric_waves": 0 if now.get("numeric_waves", 0) else 8}
    yield {"row_weight_decay": 0.0 if now.get("row_weight_decay") else 0.01}


def _made(model: str, options: Mapping[str, Any], dataset: Dataset) -> Candidate:
    """Makes a candidate of those options that the model and the dataset have a use for."""
    unused: tuple[str, ...] = ()
    if not dataset.numeric:
        unused = ("numeric_bins", "numeric_waves", "numeric_l2", "numeric_standard", "bottom_mlp")
        # Its network is a bias then.
        unused += ("dense_learning_rate",) if model == "logistic_regression" else ()
    if not any(column.ragged for column in dataset.categorical):
        unused += ("list_combiner",)
    used = {name: value for name, value in options.items() if name not in unused}
    return Candidate(model=model, options={}).with_known(used)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Columns:
    """What a model may make of a dataset's columns, as `cross` has it.

    Attributes:
      alone: what every model has: bins of all numbers where there are no ids, as it needs a table.
      pairs: of columns that act together on the label.
      codes: numbers of few values, which may be ids.
    """

    alone: tuple[str, ...]
    pairs: tuple[str, ...]
    codes: tuple[str, ...]

    def of(self, *kinds: str) -> tuple[str, ...]:
        """Gives what a model has with these kinds."""
        codes = self.codes if _CODES in kinds else ()
        return tuple(dict.fromkeys((*self.alone, *codes, *(self.pairs if _PAIRS in kinds else ()))))


def _columns(dataset: Dataset) -> _Columns:
    is_of_numbers = not dataset.categorical
    return _columns_of(dataset.directory, dataset.split("train").files, is_of_numbers)


@functools.lru_cache(maxsize=4)
def _columns_of(directory: Path, files: tuple[DataFile, ...], is_of_numbers: bool) -> _Columns:
    dataset = Dataset.open(directory)
    return _Columns(
        alone=binned_numbers(dataset) if is_of_numbers else (),
        pairs=tuple("+".join(pair) for pair in acting_pairs(dataset, _MAX_CROSSES)),
        codes=code_numbers(dataset),
    )


def _round(rate: float) -> float:
    return float(f"{rate:.2g}")
