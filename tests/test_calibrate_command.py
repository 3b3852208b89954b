"""`embedps calibrate`: the layer by its definition, where it is applied, and when it is stale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps import calibrate, evaluate, export, predict
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.engine.calibration import Curve
from embedps.errors import UsageError
from embedps.evaluation.calibration_fit import fit
from embedps.run.opened_run import open_run
from embedps.run.summary import read_evaluations
from embedps.serving.server.live_model import LiveModel
from tests.builders import COLUMNS, read_split
from tests.serving.builders import tensors


def command(*flags: object) -> int:
    return command_line.run(calibrate.main, [str(flag) for flag in flags])


def draw(num: int, *, scale: float, shift: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Predictions that are off by a scale and a shift of the logit, and labels."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(-2, 1.5, num)
    labels = (rng.random(num) < 1 / (1 + np.exp(-truth))).astype("f8")
    return (1 / (1 + np.exp(-(truth - shift) / scale))).astype("f4"), labels


def test_platt_finds_the_scale_and_shift_that_were_planted() -> None:
    p, y = draw(200_000, scale=0.5, shift=-1.0)
    curve = fit("platt", p, y, None)
    assert curve.scale == pytest.approx(0.5, rel=0.03)
    assert curve.shift == pytest.approx(-1.0, abs=0.05)
    twice = fit("platt", np.tile(p, 2), np.tile(y, 2), None)
    weighed = fit("platt", p, y, np.full(len(y), 2.0))
    assert (twice.scale, twice.shift) == pytest.approx((weighed.scale, weighed.shift), rel=1e-6)


@pytest.mark.parametrize("total", [1e-9, 1.0, 100.0])
def test_weights_that_are_shares_of_a_total_do_not_flatten_the_curve(total: float) -> None:
    p, y = draw(2_000, scale=0.5, shift=-1.0)
    shares = np.random.default_rng(1).random(len(y))
    shares[:500] = 0
    shares *= total / shares.sum()
    curve = fit("platt", p, y, shares)
    wanted = fit("platt", p, y, shares * 1500 / total)
    assert (curve.scale, curve.shift) == pytest.approx((wanted.scale, wanted.shift), rel=1e-6)
    assert curve.scale == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize("num", [60, 50_000])
def test_isotonic_is_monotone_and_of_the_rates_of_its_pools(num: int) -> None:
    p, y = draw(num, scale=0.4, shift=0.7)
    curve = fit("isotonic", p, y, None)
    mapped = curve.apply(tf.constant(p)).numpy()
    order = np.argsort(p)
    assert (np.diff(mapped[order]) >= 0).all()
    assert 0 < mapped.min() < mapped.max() < 1
    if num > 1000:
        for rows in np.array_split(order, 10):
            assert mapped[rows].mean() == pytest.approx(y[rows].mean(), abs=0.01)


def test_isotonic_pools_equal_predictions_in_any_order() -> None:
    p = np.array([0.2, 0.5, 0.5, 0.5, 0.9, 0.9], np.float32)
    y = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    wanted = fit("isotonic", p, y, None)
    # Of 0.2 and 0.5: 3 of 4. By rows, the first three were one pool, and 0.5 became a chance of 1.
    np.testing.assert_allclose(wanted.x, [np.float64(p[:4]).mean(), p[4]])
    np.testing.assert_allclose(wanted.y, [0.75, 1 - 0.5 / 6])
    rng = np.random.default_rng(3)
    p = np.round(rng.random(5000), 2).astype(np.float32)
    y = (rng.random(5000) < p).astype(np.float64)
    first, order = fit("isotonic", p, y, None), rng.permutation(5000)
    again = fit("isotonic", p[order], y[order], None)
    np.testing.assert_allclose(again.x, first.x, rtol=1e-9)
    np.testing.assert_allclose(again.y, first.y, rtol=1e-9)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_what_cannot_be_fitted_is_refused(method: Any) -> None:
    p, y = draw(500, scale=1, shift=0)
    with pytest.raises(UsageError, match="labels of both kinds"):
        fit(method, p, np.zeros(500), None)
    with pytest.raises(UsageError, match="do not rank these examples"):
        fit(method, (1 - p).astype("f4"), y, None)
    separated = fit(
        method, np.linspace(0.1, 0.9, 100).astype("f4"), (np.arange(100) > 49.5).astype("f8"), None
    )
    assert np.isfinite([separated.scale, separated.shift, *separated.y]).all()


def test_curve_keeps_ends_and_what_is_no_number() -> None:
    p = tf.constant([0.0, 1.0, np.nan, 0.3])
    platt = Curve(scale=2.0, shift=-1.0).apply(p).numpy()
    assert platt[:2].tolist() == [0, 1]
    assert np.isnan(platt[2])
    knots = Curve(x=(0.2, 0.4), y=(0.1, 0.5)).apply(p).numpy()
    assert knots[[0, 1, 3]] == pytest.approx([0.1, 0.5, 0.3])
    assert np.isnan(knots[2])


def test_a_rate_of_negatives_is_undone() -> None:
    p = np.linspace(0.01, 0.99, 50).astype("f4")
    found = Curve(shift=float(np.log(0.1))).apply(tf.constant(p)).numpy()
    assert found == pytest.approx(p / (p + (1 - p) / 0.1), rel=1e-5)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_layer_is_applied_with_the_same_bits_by_all(
    method: str, copied: Path, clicks: Dataset, tmp_path: Path, capsys: Any
) -> None:
    raw = embedps.load(copied).predict(read_split(clicks))["score"]
    assert command(copied, "--method", method) == 0
    assert "on every second example, fitted on the others" in capsys.readouterr().out
    layer = open_run(copied)
    manifest = layer.manifest()
    calibration = layer.calibrated(manifest).calibration
    assert calibration is not None
    scores = embedps.load(copied).predict(read_split(clicks))["score"]
    assert not np.array_equal(scores, raw)
    assert np.array_equal(
        embedps.load(copied, uncalibrated=True).predict(read_split(clicks))["score"], raw
    )
    labels = read_split(clicks)["label"].to_numpy()
    assert abs(scores.mean() / labels.mean() - 1) < abs(raw.mean() / labels.mean() - 1) + 0.01
    assert export.main(["--model-dir", str(copied), "--output", str(tmp_path / "e")]) == 0
    path = tmp_path / "e" / str(manifest.number)
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    table = read_split(clicks)
    given = {name: tf.constant(table[name].to_numpy()) for name in COLUMNS}
    assert served(**given)["score"].numpy().tobytes() == scores.tobytes()
    flags = ["--model-dir", str(copied), "--once", "--scores", str(tmp_path / "s.parquet")]
    before = read_evaluations(copied)
    assert evaluate.main(flags) == 0
    said = capsys.readouterr().out
    assert f"calibration {scores.mean() / labels.mean():.4f}" in said
    assert "not added to evaluation.jsonl" in said
    assert read_evaluations(copied) == before
    import pyarrow.parquet as pq

    assert pq.read_table(tmp_path / "s.parquet")["score"].to_numpy().tobytes() == scores.tobytes()
    assert (
        command_line.run(
            export.main,
            ["--model-dir", str(copied), "--output", str(tmp_path / "e"), "--uncalibrated"],
        )
        == 2
    )
    assert "with another calibration, or none" in capsys.readouterr().err


def test_predict_goes_on_with_the_layer_that_it_began_with(
    copied: Path, clicks: Dataset, tmp_path: Path, capsys: Any
) -> None:
    flags = ["--model-dir", str(copied), "--input", *map(str, clicks.paths("eval"))]
    flags += ["--output", str(tmp_path / "s")]
    assert command_line.run(predict.main, flags) == 0
    assert command(copied) == 0
    next((tmp_path / "s").glob("*.parquet")).unlink()
    assert command_line.run(predict.main, flags) == 2
    assert "has scores of another calibration, or none" in capsys.readouterr().err
    assert command_line.run(predict.main, [*flags, "--uncalibrated"]) == 0


def test_server_gives_the_bits_of_the_layer(copied: Path, clicks: Dataset) -> None:
    assert command(copied) == 0
    run = open_run(copied)
    manifest = run.manifest()
    table = read_split(clicks).slice(0, 37)
    wanted = embedps.load(copied).predict(table)["score"]
    model = LiveModel(run.calibrated(manifest), run.dataset, run.directory, manifest)
    request = model.format.request(tensors(table, COLUMNS))
    assert np.array_equal(model.score(request).outputs["score"], wanted)
    model.close()


def test_stale_or_damaged_layer_is_refused(copied: Path, tmp_path: Path, capsys: Any) -> None:
    first = CheckpointDirectory(copied).numbers()[0]
    assert command(copied, "--number", first) == 0
    for run in (
        lambda: embedps.load(copied),
        lambda: export.main(["--model-dir", str(copied), "--output", str(tmp_path)]),
        lambda: evaluate.main(["--model-dir", str(copied), "--once"]),
    ):
        with pytest.raises(UsageError, match=f"must be fitted on checkpoint .* was on {first}: "):
            run()
    assert embedps.load(copied, number=first).number == first
    assert embedps.load(copied, uncalibrated=True).number > first
    path = copied / "calibration.json"
    content = json.loads(path.read_text())
    for wrong in (
        "{",
        json.dumps({**content, "format": "x"}),
        json.dumps({**content, "curves": {"score": {"scale": -1, "shift": 0}}}),
        json.dumps({**content, "curves": {"score": {"x": [0, 0], "y": [0, 1]}}}),
        json.dumps({**content, "curves": {"score": {"x": ["a"] * 2, "y": [0, 1]}}}),
        json.dumps({**content, "curves": {"score": {"scale": float("nan"), "shift": 0}}}),
        json.dumps({**content, "checkpoint": {}}),
        "[" * 100_000,
    ):
        path.write_text(wrong)
        with pytest.raises(UsageError, match=r"calibration\.json is no calibration .* again"):
            embedps.load(copied, number=first)


def test_rate_holds_for_every_checkpoint(copied: Path, clicks: Dataset) -> None:
    first = CheckpointDirectory(copied).numbers()[0]
    raw = embedps.load(copied, number=first).predict(read_split(clicks))["score"]
    assert command(copied, "--negative-rate", "0.2") == 0
    found = embedps.load(copied, number=first).predict(read_split(clicks))["score"]
    assert found == pytest.approx(raw / (raw + (1 - raw) / 0.2), rel=1e-5)
    assert command(copied, "--split", "train") == 2
