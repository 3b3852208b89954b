"""GAUC, slices and new ids: against their definitions, in the evaluator, inline and by options."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedps
from embedps import evaluate
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.evaluation.sliced_scores import HOUR_MS, gauc, group_aucs
from embedps.models import mmoe
from embedps.run.slice_options import SliceOptions
from embedps.run.summary import read_evaluations, read_json
from tests import labelled, plain_scores
from tests.builders import (
    LEARN,
    TINY_DLRM,
    dataset_fixture,
    make_config,
    make_trainer,
    read_split,
    read_tags,
    write_dataset,
)

SLICES = SliceOptions(gauc="C2", slices=("C1", "known:C3", "row"), max_slices=3)

dataset = dataset_fixture(evaluation=(700, 433), whole=True)


def logit(p: np.ndarray) -> np.ndarray:
    return np.log(p / (1 - p.astype(np.float64)))


@pytest.mark.parametrize("levels", [0, 4])
def test_auc_of_each_group_is_that_of_its_pairs(levels: int) -> None:
    rng = np.random.default_rng(levels)
    at, scores = rng.integers(0, 9, 400), rng.normal(0, 1, 400).astype("f4")
    if levels:
        scores = np.round(scores * levels).astype("f4")
    labels, weights = rng.random(400), rng.integers(0, 3, 400).astype("f8")
    labels[at == 3] = 1
    found = group_aucs(at, scores, labels * weights, (1 - labels) * weights, 10)
    for group in (0, 1, 2, *range(4, 9)):
        rows = at == group
        plain = plain_scores.auc(labels[rows], scores[rows], weights[rows])
        assert found[group] == pytest.approx(plain)
    assert np.isnan(found[[3, 9]]).all()
    scores[np.flatnonzero(at == 5)[0]] = np.nan
    broken = group_aucs(at, scores, labels * weights, (1 - labels) * weights, 10)
    assert np.flatnonzero(np.isnan(broken)).tolist() == [3, 5, 9]


def plain_gauc(groups: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> float:
    sizes, aucs = [], []
    for group in np.unique(groups):
        rows = groups == group
        if 0 < labels[rows].sum() < rows.sum():
            sizes.append(rows.sum())
            aucs.append(plain_scores.auc(labels[rows], scores[rows]))
    return float(np.average(aucs, weights=sizes)) if sizes else np.nan


def test_gauc_is_the_mean_of_groups_that_have_both_labels() -> None:
    rng = np.random.default_rng(1)
    groups, scores = rng.integers(-50, 50, 600), rng.random(600).astype("f4")
    labels = (rng.random(600) < 0.2).astype("f8")
    assert gauc(groups, scores, labels) == pytest.approx(plain_gauc(groups, scores, labels))
    assert np.isnan(gauc(groups[:0], scores[:0], labels[:0]))
    assert np.isnan(gauc(np.arange(600), scores, labels))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """A run that is scored inline, by slices, and by one of them."""
    path = tmp_path_factory.mktemp("run") / "m"
    config = make_config(
        dataset,
        path,
        model="dlrm",
        epochs=2,
        num_shards=2,
        num_workers=2,
        eval="inline",
        metric="auc@known:C3=known",
        stop_patience=5,
        keep_best=1,
        **LEARN,
        **SLICES.divided_by,
    )
    embedps.Trainer.from_config(config, TINY_DLRM).fit()
    return path


def test_slices_have_the_scores_of_their_examples(run: Path, dataset: Dataset) -> None:
    line = read_evaluations(run)[-1]
    table = read_split(dataset)
    train = read_split(dataset, "train")["C3"].to_numpy()
    labels = table["label"].to_numpy()
    scores = embedps.load(run).predict(table)["score"]
    c1, c2, c3 = (table[name].to_numpy() for name in ("C1", "C2", "C3"))
    there = c2 != -1
    # Two scores that differ by their last bits may have another order in `predict`.
    wanted = plain_gauc(c2[there], scores[there], labels[there])
    assert line["gauc"] == pytest.approx(wanted, abs=1e-3)
    known = np.isin(c3, train) & (c3 != -1)
    assert 0 < known.sum() < len(known)
    chosen = {"known:C3=known": known, "known:C3=new": ~known}
    frequent = [
        v
        for v, _ in sorted(
            zip(*np.unique(c1, return_counts=True), strict=True), key=lambda pair: -pair[1]
        )
    ][:3]
    chosen |= {f"C1={'missing' if v == -1 else v}": c1 == v for v in frequent}
    chosen["C1=rest"] = ~np.isin(c1, frequent)
    assert {n.partition("@")[2] for n in line if "@C1" in n or "@known" in n} == {*chosen}
    for name, rows in chosen.items():
        plain = plain_scores.click_scores(labels[rows], logit(scores[rows]))
        assert line[f"examples@{name}"] == rows.sum()
        for score in ("auc", "logloss", "calibration"):
            within: dict[str, Any] = {"abs": 1e-3} if score == "auc" else {"rel": 1e-5}
            assert line[f"{score}@{name}"] == pytest.approx(plain[score], **within)
    assert sum(line[f"examples@{n}"] for n in chosen if n.startswith("C1")) == len(labels)
    assert line["examples@row=rest"] == len(labels) - 3  # a slice per example stays below the cap
    assert line["auc@row=rest"] == pytest.approx(line["auc"], abs=0.01)
    assert read_json(run / "summary.json")["evaluation"]["gauc"] == line["gauc"]
    assert {"gauc", "auc@known:C3=new"} < read_tags(run / "tensorboard/eval")


@pytest.mark.parametrize("flags", [("--batch-size", "4096"), ("--num-shards", "3")])
def test_evaluator_gives_the_same_bits(run: Path, flags: tuple[str, str]) -> None:
    before = len(read_evaluations(run))
    assert evaluate.main(["--model-dir", str(run), "--once", *flags]) == 0
    lines = read_evaluations(run)
    inline, alone = lines[before - 1], lines[-1]
    assert (len(lines), inline["number"]) == (before + 1, alone["number"])
    names = [name for name in inline if "@" in name or name == "gauc"]
    assert {n: inline[n] for n in names} == {n: alone[n] for n in names}


def test_deciles_are_tenths_of_the_examples_by_prediction(run: Path, dataset: Dataset) -> None:
    line = read_evaluations(run)[-1]
    table = read_split(dataset)
    labels, scores = table["label"].to_numpy(), embedps.load(run).predict(table)["score"]
    order = np.argsort(-scores)
    assert len(line["deciles"]) == 10
    for decile, rows in zip(line["deciles"], np.array_split(order, 10), strict=True):
        assert decile["examples"] == pytest.approx(len(labels) / 10)
        assert decile["predicted"] == pytest.approx(scores[rows].mean(), rel=0.01)
        assert decile["actual"] == pytest.approx(labels[rows].mean(), abs=0.02)
        assert decile["lift"] == pytest.approx(decile["actual"] / labels.mean())
    json.dumps(line, allow_nan=False)


def test_labels_that_are_missing_or_soft_or_weighed_are_sliced_where_they_are(
    tmp_path: Path,
) -> None:
    columns = labelled.make_columns(640, 3)
    dataset = labelled.write_dataset(tmp_path / "set", columns)
    config = make_config(
        dataset, tmp_path / "m", eval="inline", gauc="item", slices=["item"], max_slices=2,
        metric="watched_weighted_gauc", keep_best=1,
    )  # fmt: skip
    embedps.Trainer.from_config(
        dataclasses.replace(config, model="mmoe"), mmoe.Config(num_experts=2)
    ).fit()
    (line,) = read_evaluations(tmp_path / "m")
    scores = embedps.load(tmp_path / "m").predict({"item": columns["item"]})["watched"]
    there = np.isfinite(columns["watched"])
    item, y, w, p = (
        each[there]
        for each in (columns["item"], columns["watched"], columns["watch_weight"], scores)
    )
    value = max(np.unique(item), key=lambda v: ((item == v).sum(), -v))
    rows = item == value
    plain = plain_scores.click_scores(y[rows], logit(p[rows]), w[rows])
    for score in ("logloss", "calibration"):
        assert line[f"watched_weighted_{score}@item={value}"] == pytest.approx(plain[score], 1e-5)
    # All examples of an item have one score, so each pair is a tie.
    assert line["watched_weighted_gauc"] == line["click_gauc"] == 0.5
    assert line["watched_weighted_auc@item=rest"] is not None
    assert len(line["click_deciles"]) == len(line["watched_weighted_deciles"]) == 10


def test_a_missing_key_is_no_group_of_gauc(tmp_path: Path) -> None:
    columns = labelled.make_columns(640, 4)
    rng = np.random.default_rng(5)
    columns["who"] = np.where(rng.random(640) < 0.5, -1, rng.integers(0, 40, 640))
    written = labelled.write_dataset(tmp_path / "set", columns, labelled.LABELS[:1])
    dataclasses.replace(written, keys=("who",)).save()
    dataset = Dataset.open(tmp_path / "set")
    config = make_config(dataset, tmp_path / "m", eval="inline", gauc="who", slices=["who"])
    embedps.Trainer.from_config(config, TINY_DLRM).fit()
    (line,) = read_evaluations(tmp_path / "m")
    p = embedps.load(tmp_path / "m").predict({"item": columns["item"]})["score"]
    rows = np.isfinite(columns["click"]) & (columns["who"] != -1)
    wanted = plain_gauc(columns["who"][rows], p[rows], columns["click"][rows])
    assert line["gauc"] == pytest.approx(wanted, abs=1e-3)
    assert line["examples@who=missing"] == (np.isfinite(columns["click"]) & ~rows).sum()


def test_a_time_has_the_groups_of_its_hours(tmp_path: Path) -> None:
    columns = labelled.make_columns(640, 4)
    columns["at"] = 1_600_000_000_000 + np.random.default_rng(5).integers(0, 10 * HOUR_MS, 640)
    written = labelled.write_dataset(tmp_path / "set", columns, labelled.LABELS[:1])
    dataclasses.replace(written, timestamp="at").save()
    dataset = Dataset.open(tmp_path / "set")
    config = make_config(dataset, tmp_path / "m", eval="inline", gauc="at")
    embedps.Trainer.from_config(config, TINY_DLRM).fit()
    (line,) = read_evaluations(tmp_path / "m")
    p = embedps.load(tmp_path / "m").predict({"item": columns["item"]})["score"]
    rows = np.isfinite(columns["click"])
    hours = columns["at"] // HOUR_MS % 24
    wanted = plain_gauc(hours[rows], p[rows], columns["click"][rows])
    assert line["gauc"] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gauc": "I1"}, "slices and groups go by columns of one id, key or time per example"),
        ({"slices": ["known:row"]}, "needs a feature that the model looks up"),
        ({"slices": ["C1", "C1"]}, "slices must name each column once but repeats 'C1'"),
        (
            {"gauc": "C1", "max_slice_examples": 1000},
            "split 'eval' has 1,133 examples, more than 1,000: with 0.0 GB to spare give "
            "--max-slice-examples 1133, else make a smaller split, such as by a hash of C1",
        ),
        ({"metric": "gauc"}, "metric 'gauc' needs --gauc COLUMN"),
        ({"metric": "auc@C1=3"}, "are none: give --slices C1"),
        (
            {"metric": "aux", "stop_patience": 1, "gauc": "C1", "slices": ["C1"]},
            "there is no score 'aux' to go by: the model has auc, logloss, normalized_entropy, "
            "calibration, auprc, rmse, mae, gauc; of slices also auc@C1=VALUE, logloss@C1=VALUE, "
            "calibration@C1=VALUE",
        ),
        ({"metric": "recall", "keep_best": 2}, "there is no score 'recall' to go by"),
        (
            {"metric": "inner_logloss", "keep_best": 2, "inner_share": 0.2},
            "calibration, auprc, rmse, mae, inner_loss, inner_auc, inner_auprc, inner_rmse, "
            "inner_mae",
        ),
        ({"tolerance": 0.1}, "tolerance says how much worse"),
        ({"min_delta": 0.1}, "min_delta says what is an improvement"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_the_run(
    tmp_path: Path, dataset: Dataset, fields: Any, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_trainer(dataset, tmp_path, eval="inline", **fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_slice_that_no_example_has_is_refused_with_those_that_have_some(
    tmp_path: Path, dataset: Dataset
) -> None:
    fields: dict[str, Any] = {"slices": ["C1"], "max_slices": 2, "stop_patience": 1}
    trainer = make_trainer(dataset, tmp_path, eval="inline", metric="auc@C1=8", **fields)
    with pytest.raises(UsageError, match=r"no score 'auc@C1=8' .* the model has auc@C1=-?\d+, "):
        trainer.fit()


def test_evaluate_takes_slices_of_its_own(history: Path, tmp_path: Path, capsys: Any) -> None:
    flags = ["--model-dir", str(history), "--number", "1", "--slices", "C1", "known:C2"]
    assert command_line.run(evaluate.main, [*flags, "--gauc", "C3", "--max-slices", "2"]) == 0
    out = capsys.readouterr().out
    assert "GAUC 0." in out
    assert ", 5 slices, 1,133 examples" in out
    assert command_line.run(evaluate.main, [*flags, "--max-slice-examples", "10"]) == 2


def test_sidecar_slices_as_the_run_asks(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", evaluation=(300,))
    make_trainer(dataset, tmp_path / "m", eval="sidecar", gauc="C1", slices=["C2"]).fit()
    (line,) = read_evaluations(tmp_path / "m")
    assert line["gauc"] > 0
    assert line["examples@C2=rest"] > 0
