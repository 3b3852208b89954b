"""`embedps tune`: the order of the search, what stops and resumes it, and what it trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps import tune
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.config_fields import values_of
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.errors import TrainingError, UsageError
from embedps.run.candidates import MODELS, Candidate, base_options, first_candidates, neighbors
from embedps.run.run_config import read_run
from embedps.run.summary import read_evaluations, read_json, write_json
from embedps.train import parse
from embedps.training import tuning
from embedps.training.tuning import Search, Settings
from tests.builders import read_split, write_dataset

Score = Callable[[Candidate, int], float | None]


def make_settings(model_dir: Path, dataset: Dataset, **fields: Any) -> Settings:
    fields = {"folds": 3, "share": 0.2, "metric": "inner_loss", "secs": 1e6, **fields}
    identity = {"format": "embedps.tuning", "seed": 0, "metric": fields["metric"]}
    base = base_options(dataset)
    base |= {"data": "D", "model_dir": "M"}
    return Settings(model_dir=model_dir, base=base, identity=identity, **fields)


class Scored:
    """Replaces training by a function; keeps what was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, score: Score) -> None:
        self.asked: list[tuple[str, int]] = []

        def scored(_: Search, candidate: Candidate, fold: int, limit: float) -> Any:
            self.asked.append((candidate.key, fold))
            return score(candidate, fold), 4

        monkeypatch.setattr(Search, "_score", scored)


def distance(candidate: Candidate, fold: int) -> float:
    """A loss whose least is at deepfm, with rows at 0.1 and 6 epochs."""
    run = candidate.run({"data": "D", "model_dir": "M", "epochs": 20})
    of_rate = abs(np.log(run.config.optimizer.sparse_learning_rate / 0.1))
    of_epochs = abs(min(run.config.epochs, 9) - 6) / 10
    return 0.1 * float(of_rate) + of_epochs + (candidate.model != "deepfm") + 0.01 * fold


def search_in(model_dir: Path, clicks: Dataset, **fields: Any) -> Search:
    model_dir.mkdir(exist_ok=True)
    settings = make_settings(model_dir, clicks, **fields)
    return Search(settings, clicks, first_candidates(clicks, MODELS))


def test_search_goes_to_what_scores_best(
    clicks: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = Scored(monkeypatch, distance)
    search = search_in(tmp_path, clicks)
    search.run()
    search.choose()
    first = first_candidates(clicks, MODELS)
    assert scored.asked[: len(first)] == [(c.key, 0) for c in first]
    assert len(set(scored.asked)) == len(scored.asked)
    chosen = search.chosen
    assert (chosen.model, chosen.options["epochs"]) == ("deepfm", 6)
    best = distance(chosen, 0)
    around = neighbors(chosen, {**base_options(clicks), "data": "D", "model_dir": "M"}, clicks)
    assert len(around) > 5
    assert all(distance(other, 0) >= best for other in around)
    assert {(chosen.key, fold) for fold in range(3)} <= {*scored.asked}
    assert "nothing nearby is better" in search.reason()


def test_search_goes_on_after_an_interruption_as_it_would_have(
    clicks: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Scored(monkeypatch, distance)
    search_in(tmp_path / "whole", clicks).run()
    left: Iterator[int] = iter(range(30))

    def interrupted(candidate: Candidate, fold: int) -> float:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return distance(candidate, fold)

    parts = Scored(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        search_in(tmp_path / "parts", clicks).run()
    before = parts.asked[:-1]  # the last one is asked for again
    after = Scored(monkeypatch, distance)
    resumed = search_in(tmp_path / "parts", clicks)
    resumed.run()
    assert before + after.asked == whole.asked
    assert not any(tried.deaths for tried in resumed.record.tried.values())


def test_candidate_that_fails_is_one_line_and_left_out(
    clicks: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(candidate: Candidate, fold: int) -> float | None:
        if candidate.model == "deepfm":
            raise TrainingError("the loss is not a number")
        if candidate.model == "dcn_v2":
            raise tf.errors.ResourceExhaustedError(None, None, "no memory\nfor it")
        return np.nan if candidate.model == "fm" else distance(candidate, fold)

    Scored(monkeypatch, fails)
    search = search_in(tmp_path, clicks)
    search.run()
    search.choose()
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("left out")]
    assert any("the loss is not a number: --model deepfm" in line for line in lines)
    assert any("no memory for it" in line and "dcn_v2" in line for line in lines)
    assert any("no inner_loss of the inner rows" in line and "fm" in line for line in lines)
    assert search.chosen.model not in ("deepfm", "dcn_v2", "fm")
    Scored(monkeypatch, lambda candidate, fold: None)
    nothing = search_in(tmp_path / "none", clicks)
    nothing.run()
    with pytest.raises(UsageError, match="no candidate has a score: no inner_loss"):
        nothing.choose()


def test_candidate_that_kills_the_process_twice_is_left_out(
    clicks: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = first_candidates(clicks, MODELS)[1]
    for deaths in (1, 2):
        record = search_in(tmp_path, clicks).record
        assert record.of(deadly.key).deaths == deaths - 1
        record.save(running=deadly.key)  # and dies
    scored = Scored(monkeypatch, distance)
    search = search_in(tmp_path, clicks)
    search.run()
    assert deadly.key not in [key for key, _ in scored.asked]
    assert "ended 2 times while it trained" in search.record.tried[deadly.key].problem


def test_search_ends_with_its_time_and_keeps_some_for_the_final_model(
    clicks: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("embedps.training.tuning.time.monotonic", lambda: now[0])

    def takes(candidate: Candidate, fold: int) -> float:
        now[0] += 10
        return distance(candidate, fold)

    scored = Scored(monkeypatch, takes)
    search = search_in(tmp_path, clicks, secs=105)
    search.run()
    search.choose()
    # Half of the time for the first candidates, then the best of them on more shares; 10 s remain.
    assert [fold for _, fold in scored.asked] == [0] * 6 + [0] * 3
    assert search.record.secs == 90
    assert search.chosen.options["epochs"] == 4
    assert "the time was over" in search.reason()
    now[0] += 1e9
    longer = search_in(tmp_path, clicks, secs=305)  # more first candidates, then others
    longer.run()
    longer.choose()
    assert 270 <= longer.record.secs <= 290


def test_tuned_model_is_the_one_that_its_line_trains(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dataset = write_dataset(tmp_path / "set", train=(900,), evaluation=(300,))
    monkeypatch.setattr(tune, "_FOLDS_OF_FEW", 2)
    monkeypatch.setattr(tuning, "_BEST_FIRST", 1)
    monkeypatch.setattr(tuning, "neighbors", lambda *_: [])
    quick = {"batch_size": 64, "epochs": 2}
    monkeypatch.setattr(tune, "base_options", lambda data: {**base_options(data), **quick})
    model_dir = tmp_path / "m"
    flags = [f"--data={dataset.directory}", f"--model-dir={model_dir}", "--minutes=60"]
    flags += ["--models=logistic_regression", "--metric=auc", "--seed=3"]
    assert command_line.run(tune.main, flags) == 0
    lines = capsys.readouterr().out.splitlines()
    record = read_json(model_dir / tune.FILE_NAME)
    chosen = record["tried"][record["chosen"]["key"]]
    assert len(chosen["scores"]) == 2
    assert len(set(chosen["scores"])) == 2  # of different rows
    assert not (model_dir / "tuning").exists()
    said = next(line for line in lines if line.startswith("chosen"))
    assert f"the best inner_auc, {np.mean(chosen['scores']):.5f} on 2 of 2" in said
    train = next(x for x in lines if x.startswith("train it anew")).partition("embedps train ")[2]
    again = parse(train.replace("DIR", str(model_dir)).split())
    run = read_run(model_dir)
    assert values_of(again.config) | {"log_secs": 1e6} == values_of(run.config)
    assert again.model_config == run.model_config
    assert run.config.evaluation.inner_share == 0
    assert read_json(model_dir / "summary.json")["examples"] == 900 * run.config.epochs
    # The candidate's score is that of a plain run on the same rows.
    plain = [*train.replace("DIR", str(tmp_path / "p")).split(), "--inner-share=0.2"]
    embedps_train = parse([*plain, "--inner-fold=1", "--eval=none"])
    recommender = embedps_train.recommender(dataset)
    result = embedps.Trainer(recommender, dataset, embedps_train.config).fit()
    assert result.scores[-1].get("inner_auc") == pytest.approx(chosen["scores"][1], rel=1e-6)
    # The same command has nothing left to do.
    scores = len(read_evaluations(model_dir))
    assert command_line.run(tune.main, flags) == 0
    assert len(read_evaluations(model_dir)) == scores
    assert embedps.load(model_dir).predict(read_split(dataset))["score"].shape == (300,)


def refused(capsys: pytest.CaptureFixture[str], *flags: object) -> str:
    assert command_line.run(tune.main, [str(flag) for flag in flags]) == UsageError.exit_code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_what_cannot_be_tuned_is_refused_in_one_line(
    clicks: Dataset,
    history: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, where = f"--data={clicks.directory}", f"--model-dir={tmp_path / 'm'}"
    assert "must be of wide_deep" in refused(capsys, data, where, "--models=sasrec")
    assert "needs --gauc COLUMN" in refused(capsys, data, where, "--metric=gauc")
    assert "--watch" in refused(capsys, data, where, "--watch=D")
    assert "minutes must be above 0" in refused(capsys, data, where, "--minutes=0")
    assert "needs a local --model-dir" in refused(capsys, data, "--model-dir=s3://b/m")
    assert "checkpoints of another run" in refused(capsys, data, f"--model-dir={history}")
    few = write_dataset(tmp_path / "few", train=(12,), evaluation=(10,))
    assert "is too small to tune on" in refused(capsys, f"--data={few.directory}", where)
    assert not (tmp_path / "m").exists()
    (tmp_path / "m").mkdir()
    for content, wanted in (
        ({}, "is not what embedps tune writes"),
        ({"format": "embedps.tuning", "rows": "x"}, "rows is"),
    ):
        write_json(tmp_path / "m" / tune.FILE_NAME, content)
        assert wanted in refused(capsys, data, where)
    cluster = {"cluster": {"chief": ["a:1"], "ps": ["b:1"]}, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    assert "trains in one process" in refused(capsys, data, where)


def test_unknown_score_is_refused_with_those_that_there_are(
    clicks: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--data={clicks.directory}", f"--model-dir={tmp_path}", "--metric=accuracy"]
    flags += ["--models=logistic_regression"]
    assert command_line.run(tune.main, flags) == UsageError.exit_code
    assert "no score 'inner_accuracy' to go by: the model has inner_loss, inner_auc" in (
        capsys.readouterr().err
    )
    assert CheckpointDirectory(tmp_path).latest() is None
