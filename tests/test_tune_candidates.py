"""What `embedps tune` tries: candidates, their neighbors, and which of those tried is picked."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import embedps
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import CategoricalFeature, NumericFeature
from embedps.run.candidates import (
    MODELS,
    Candidate,
    base_options,
    first_candidates,
    neighbors,
    settling_epochs,
)
from embedps.training import tuning
from embedps.training.tuning_record import Tried


def test_candidates_differ_in_what_data_without_numbers_has(clicks: Dataset) -> None:
    assert clicks.numeric
    bare = dataclasses.replace(clicks, numeric=())
    found = first_candidates(bare, ("logistic_regression", "wide_deep"))
    linear = [c for c in found if c.model == "logistic_regression"]
    of_numbers = {"numeric_bins", "numeric_l2", "numeric_waves", "numeric_standard"}
    assert not any(of_numbers & set(c.options) for c in found)
    assert not any("dense_learning_rate" in c.options for c in linear)
    assert linear[0].options == {}
    columns = len(bare.categorical)
    assert linear[1].options == {
        "sparse_learning_rate": min(10.0, 60 / columns),
        "row_l2": columns / 2,
        "epochs": 80,
    }
    assert linear[2].options == {"sparse_learning_rate": 3.0, "row_weight_decay": 0.002}
    around = neighbors(tuning.with_epochs(linear[0], 4), {"data": "D", "model_dir": "M"}, bare)
    assert around
    assert not any({*of_numbers, "dense_learning_rate"} & set(c.options) for c in around)
    with_numbers = tuning.with_epochs(first_candidates(clicks, MODELS)[0], 4)
    changed = neighbors(with_numbers, {"data": "D", "model_dir": "M"}, clicks)
    penalized = [c for c in changed if "row_l2" in c.options]
    strength = (columns + len(clicks.numeric)) / 2
    assert [c.options["row_l2"] for c in penalized] == [float(f"{strength:.2g}")]
    doubled = neighbors(penalized[0], {"data": "D", "model_dir": "M"}, clicks)
    first = [c.options["row_l2"] for c in doubled[:2]]
    assert first == [float(f"{each:.2g}") for each in (strength * 2, strength / 2)]
    of_them = (strength / 2, strength, strength * 2)
    assert {c.options["row_l2"] for c in doubled} == {float(f"{each:.2g}") for each in of_them}
    assert any(c.options.get("numeric_l2") == 30 for c in changed)


def test_rates_and_strengths_follow_the_number_of_columns(clicks: Dataset) -> None:
    """A step moves a logit by the weights of all columns; together they have one variance."""
    base = {"data": "D", "model_dir": "M"}
    for columns in (20, 40, 80, 160):
        ids = tuple(CategoricalFeature(name=f"c{i}", cardinality=9) for i in range(columns - 4))
        numbers = tuple(NumericFeature(name=f"x{i}") for i in range(4))
        schema = {**clicks.schema, **{c.name: "int64" for c in ids}}
        schema |= {c.name: "float" for c in numbers}
        dataset = dataclasses.replace(clicks, categorical=ids, numeric=numbers, schema=schema)
        found = first_candidates(dataset, MODELS)
        assert sum("row_l2" in each.options for each in found) >= 1
        for each in found:
            run, inputs = each.run(base), columns + len(each.options.get("cross", ()))
            rate = run.config.optimizer.sparse_learning_rate
            if "row_l2" in each.options:
                assert each.options["row_l2"] == each.options["numeric_l2"] == inputs / 2
                assert rate == float(f"{60 / inputs:.2g}")
            elif run.model_config.sparse_optimizer == "sgd":
                assert rate <= 400 / max(inputs, 40)
        assert any(not each.options for each in found) == (columns <= 40)


def test_weights_under_l2_have_more_epochs_where_rows_are_few() -> None:
    rows = (10_000, 50_000, 80_000, 199_999)
    assert [settling_epochs(each, 20) for each in rows] == [80, 80, 40, 20]
    assert settling_epochs(3_000_000, 8) == 8


def test_networks_of_numbers_decay_and_are_of_data_with_numbers(clicks: Dataset) -> None:
    standard = [
        (each.model, each.options["dense_weight_decay"])
        for each in first_candidates(clicks, ("wide_deep", "deepfm"))
        if each.options.get("numeric_standard")
    ]
    assert standard == [("wide_deep", 1.0)]
    bare = dataclasses.replace(clicks, numeric=())
    counts = [len(first_candidates(of, ("wide_deep",))) for of in (clicks, bare)]
    assert counts[0] > counts[1]
    base = {"data": "D", "model_dir": "M"}
    for model in ("wide_deep", "deepfm", "dcn_v2", "dlrm", "fm", "logistic_regression"):
        for decay in (0.0, 1.0):
            options = {"epochs": 2, "dense_weight_decay": decay}
            around = neighbors(Candidate(model=model, options=options), base, clicks)
            found = {each.options["dense_weight_decay"] for each in around}
            assert found == ({decay} if model in ("fm", "logistic_regression") else {0.0, 1.0})


def test_flags_of_yes_and_no_train_the_same_candidate(clicks: Dataset) -> None:
    for value in (True, False):
        found = Candidate(model="logistic_regression", options={"numeric_standard": value})
        assert found.flags().endswith(" --numeric-standard" if value else " --no-numeric-standard")
        assert Candidate.of_key(found.key) == found


@pytest.mark.parametrize("metric", ["inner_loss", "inner_auc"])
def test_simplest_model_is_picked_unless_others_are_told_from_it(metric: str) -> None:
    sign = 1 if metric == "inner_loss" else -1
    base, rng = rng_scores(), np.random.default_rng(3)
    for lack in (-0.2, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0):
        for _ in range(20):
            mine = base + sign * (0.1 * lack + rng.normal(0, 0.1, 5))
            simple = Candidate(model="logistic_regression", options={"epochs": 20})
            best = Candidate(model="dcn_v2", options={"epochs": 4})
            pairs = [
                (best, Tried(scores=base.tolist())),
                (simple, Tried(scores=mine.tolist())),
            ]
            lacks = sign * (mine - base)
            is_told = lacks.mean() > np.std(lacks, ddof=1) / np.sqrt(5)
            for order in (pairs, pairs[::-1]):
                assert tuning.pick(order, metric, 5)[0] == (best if is_told else simple)
            # Of one share nothing is known of the noise: the better one, whatever it is.
            first = simple if lacks[0] < 0 else best
            assert tuning.pick(pairs, metric, 1)[0] == first


def rng_scores() -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(0).uniform(0.5, 0.7, 5)


def test_of_one_model_the_best_mean_is_picked() -> None:
    pairs = [
        (
            Candidate(model="fm", options={"epochs": epochs}),
            Tried(scores=[0.4 + 0.001 * epochs, 0.5 - 0.002 * epochs]),
        )
        for epochs in (1, 2, 3)
    ]
    assert tuning.pick(pairs, "inner_loss", 2)[0].options["epochs"] == 3


@pytest.mark.parametrize("metric", ["inner_loss", "inner_auc"])
def test_one_that_is_far_ahead_where_the_time_ended_is_chosen(metric: str) -> None:
    sign = 1 if metric == "inner_loss" else -1
    simple = (
        Candidate(model="logistic_regression", options={}),
        Tried(scores=[0.65, 0.69, 0.71, 0.70, 0.73]),
    )
    spread = float(np.std(simple[1].scores, ddof=1))

    def ended(shares: int, lead: float) -> tuple[Candidate, Tried]:
        scores = [score - sign * lead * spread for score in simple[1].scores[:shares]]
        return Candidate(model="wide_deep", options={"dropout": lead}), Tried(scores=scores)

    near, far, further = ended(1, 1.9), ended(1, 2.1), ended(2, 2.3)
    assert tuning.far_ahead(simple, [simple, near], metric) == simple
    assert tuning.far_ahead(simple, [far, simple, near], metric) == far
    assert tuning.far_ahead(simple, [further, far], metric) == further
    alone = simple[0], Tried(scores=[0.65])  # of one share nothing is known of the noise
    assert tuning.far_ahead(alone, [alone, ended(1, 5.0)], metric) == alone


def test_lists_are_summed_too(clicks: Dataset) -> None:
    """A mean does not tell how many there are."""
    lists = CategoricalFeature(name="tags", cardinality=3, ragged=True)
    schema = {**clicks.schema, "tags": "list<element: int64 not null>"}
    dataset = dataclasses.replace(clicks, categorical=(*clicks.categorical, lists), schema=schema)
    base = {"data": "D", "model_dir": "M"}
    for of, combiners in ((dataset, {"mean", "sum", "sqrtn"}), (clicks, {"mean"})):
        found = first_candidates(of, ("logistic_regression", "wide_deep"))
        summed = [c for c in found if c.options.get("list_combiner") == "sum"]
        assert {c.model for c in summed} == ({c.model for c in found} if of is dataset else set())
        around = neighbors(tuning.with_epochs(found[0], 4), base, of)
        assert {c.options.get("list_combiner", "mean") for c in around} == combiners
        for each in summed:
            embeddings = each.run(base).recommender(of).build().embeddings
            assert {f.name: f.combiner for f in embeddings.features}["tags"] == "sum"


def test_numbers_alone_have_tables_of_their_bins(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x, y, same = rng.normal(0, 1, 4000), rng.exponential(3, 4000), np.ones(4000)
    logit = np.where(x > 0, 1, -1) * np.where(y > 2, 2, -2)
    click = (rng.random(4000) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    x[::9] = np.nan
    table = {"x": pa.array(x, from_pandas=True), "y": y, "same": same, "click": click}
    schema = {
        "format": "parquet",
        "column": [
            {"name": "click", "as": "label"},
            {"names": ["x", "y", "same"], "as": "numeric", "type": "float"},
        ],
    }
    dataset = embedps.Dataset.from_arrow(
        pa.table(table), tmp_path / "set", schema, eval_fraction=0.2, num_shards=1
    )
    base = {**base_options(dataset), "data": str(dataset.directory), "epochs": 2, "seed": 0}
    bins = base["cross"]
    assert [name.partition("/")[0] for name in bins] == ["x", "y"]
    found = first_candidates(dataset, MODELS)
    crossed = next(c for c in found if "cross" in c.options)
    assert crossed.options["cross"][:2] == bins
    assert set(crossed.options["cross"][2:]) == {"+".join(bins)}
    assert {c.options.get("cross", bins) for c in found} == {bins, crossed.options["cross"]}
    for candidate in (found[0], crossed):
        around = neighbors(tuning.with_epochs(candidate, 2), {**base, "model_dir": "M"}, dataset)
        changed = {each.options.get("cross", bins) for each in around}
        assert changed == {bins, crossed.options["cross"]}
    aucs: dict[str, float] = {}
    for candidate in (found[0], crossed, Candidate(model="deepfm", options={"cross": bins})):
        model_dir = str(tmp_path / f"{len(aucs)}")
        run = candidate.run({**base, "model_dir": model_dir, "eval": "inline"})
        trained = embedps.Trainer(run.recommender(dataset), dataset, run.config).fit()
        aucs[candidate.key] = trained.scores[-1].get("auc") or 0.0
    assert aucs[crossed.key] > 0.8 > 0.6 > aucs[found[0].key]
