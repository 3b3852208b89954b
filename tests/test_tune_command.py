"""`embedps tune`: the order of the search, what stops and resumes it, and what it trains."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps import tune
from embedps.config_fields import values_of
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import (
    InputSummary,
)
from embedps.errors import TrainingError, UsageError
from embedps.run.candidates import MODELS, Candidate, base_options, first_candidates, neighbors
from embedps.run.run_config import read_run
from embedps.run.summary import read_evaluations, read_json
from embedps.scheduling.division import LedgerOptions
from embedps.train import parse
from embedps.training import tuning, tuning_record
from embedps.training.fit_result import Scores
from embedps.training.mixed_rows import write_mixed
from embedps.training.tuning import Search
from embedps.training.tuning_record import Settings
from tests.builders import read_split, write_dataset
from tests.tuning_helpers import only_tries, refused

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
        # Nothing dies here but what a test raises: no file has to reach the disk.
        monkeypatch.setattr(
            tuning_record, "write_json", lambda path, content: path.write_text(json.dumps(content))
        )


def distance(candidate: Candidate, fold: int) -> float:
    """A loss whose least is at deepfm, with rows at 0.1 and 6 epochs."""
    run = candidate.run({"data": "D", "model_dir": "M", "epochs": 20})
    of_rate = abs(np.log(run.config.optimizer.sparse_learning_rate / 0.1))
    of_epochs = abs(min(run.config.epochs, 9) - 6) / 10
    return 0.1 * float(of_rate) + of_epochs + (candidate.model != "deepfm") + 0.01 * fold


def interrupted_after(runs: int, score: Score) -> Score:
    left: Iterator[int] = iter(range(runs))

    def interrupted(candidate: Candidate, fold: int) -> float | None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return score(candidate, fold)

    return interrupted


def search_in(model_dir: Path, clicks: Dataset, **fields: Any) -> Search:
    model_dir.mkdir(exist_ok=True)
    settings = make_settings(model_dir, clicks, **fields)
    return Search(settings, clicks, first_candidates(clicks, MODELS))


def test_search_goes_to_what_scores_best(
    clicks: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_BY_CHANCE", 0.25)
    scored = Scored(monkeypatch, distance)
    search = search_in(tmp_path, clicks)
    search.run()
    search.choose()
    first = first_candidates(clicks, MODELS)
    plain = [c for c in first if c.model == "logistic_regression" and "cross" not in c.options][:3]
    assert sum("numeric_l2" in c.options for c in plain) == 2
    runs = [(candidate.key, 0) for candidate in plain]
    near = [c for c in plain if distance(c, 0) <= 1.25 * min(distance(each, 0) for each in plain)]
    assert len(near) == 2
    for candidate in sorted(near, key=lambda c: distance(c, 0)):
        # On all shares, as nothing is to be told from chance; the third is too far behind for that.
        of_its_own = "epochs" in candidate.options
        settled = candidate if of_its_own else tuning.with_epochs(candidate, 4)
        runs += [(settled.key, fold) for fold in range(int(of_its_own), 3)]
    assert scored.asked[: len(runs)] == runs
    assert len(runs) == 9
    others = [(c.key, 0) for c in first if c not in plain]
    assert scored.asked[len(runs) : len(runs) + len(others)] == others
    asked = [key for key, _ in scored.asked]
    places = [asked.index(c.key) for c in first]
    assert places == sorted(places)
    worse = next(c for c in first if c.model == "fm")
    assert asked.count(worse.key) == 1
    assert tuning.with_epochs(worse, 4).key not in asked
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
    parts = Scored(monkeypatch, interrupted_after(30, distance))
    with pytest.raises(KeyboardInterrupt):
        search_in(tmp_path / "parts", clicks).run()
    before = parts.asked[:-1]  # the last one is asked for again
    after = Scored(monkeypatch, distance)
    resumed = search_in(tmp_path / "parts", clicks)
    resumed.run()
    assert before + after.asked == whole.asked
    assert not any(tried.deaths for tried in resumed.record.tried.values())


@pytest.mark.parametrize("behind", [0.01, 0.1])
def test_neighbors_of_a_close_rival_are_tried_too(
    behind: float, clicks: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is behind on the first share may have the best candidate of all near it."""

    def score(candidate: Candidate, fold: int) -> float:
        behind_of = {"logistic_regression": 0.0, "wide_deep": behind}
        lack = behind_of.get(candidate.model, 1.0)
        return 0.5 * (1 + lack) - 0.2 * (lack == behind and "dropout" in candidate.options)

    first = [Candidate(model=model, options={}) for model in ("logistic_regression", "wide_deep")]
    first.append(Candidate(model="dcn_v2", options={}))

    def search(name: str) -> Search:
        (tmp_path / name).mkdir(exist_ok=True)
        return Search(make_settings(tmp_path / name, clicks), clicks, first)

    whole = Scored(monkeypatch, score)
    found = search("whole")
    found.run()
    found.choose()
    models = [json.loads(key)[0] for key, _ in whole.asked]
    assert models.count("dcn_v2") == 1
    if behind == 0.1:
        assert (models.count("wide_deep"), found.chosen.model) == (1, "logistic_regression")
        return
    assert (found.chosen.model, "dropout" in found.chosen.options) == ("wide_deep", True)
    # The rival has more scores by then.
    parts = Scored(monkeypatch, interrupted_after(len(whole.asked) - 8, score))
    with pytest.raises(KeyboardInterrupt):
        search("parts").run()
    after = Scored(monkeypatch, score)
    search("parts").run()
    assert parts.asked[:-1] + after.asked == whole.asked


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


def of_ten_secs(
    monkeypatch: pytest.MonkeyPatch, score: Callable[[Candidate, int], float]
) -> tuple[Scored, list[float]]:
    """Runs that take ten seconds each, and the clock."""
    now = [0.0]
    monkeypatch.setattr(tuning, "clock", lambda: now[0])

    def takes(candidate: Candidate, fold: int) -> float:
        now[0] += 10
        return score(candidate, fold)

    return Scored(monkeypatch, takes), now


def test_search_ends_with_its_time_and_keeps_some_for_the_final_model(
    clicks: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored, now = of_ten_secs(monkeypatch, distance)
    search = search_in(tmp_path, clicks, secs=105)
    search.run()
    search.choose()
    # The plain regressions, of which the best goes on with its epochs; then others; 10 s remain.
    assert [fold for _, fold in scored.asked] == [0, 0, 0, 0, 1, 2, 0, 0, 0]
    assert search.record.secs == 90
    assert search.chosen.options["epochs"] == 4
    assert "the time was over" in search.reason()
    now[0] += 1e9
    longer = search_in(tmp_path, clicks, secs=305)  # more first candidates, then others
    longer.run()
    longer.choose()
    assert 270 <= longer.record.secs <= 290


@pytest.mark.parametrize("runs", [2, 4, 5, 8, 13, 17, 21])
def test_what_time_decides_is_decided_again_after_an_interruption(
    runs: int, clicks: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored, _ = of_ten_secs(monkeypatch, distance)
    search_in(tmp_path / "whole", clicks, secs=270).run()
    whole = scored.asked.copy()
    left = iter(range(runs))
    begin = Search._has_time

    def has_time(search: Search, candidate: Candidate) -> bool:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return begin(search, candidate)

    scored.asked.clear()
    monkeypatch.setattr(Search, "_has_time", has_time)
    with pytest.raises(KeyboardInterrupt):
        search_in(tmp_path / "parts", clicks, secs=270).run()
    monkeypatch.setattr(Search, "_has_time", begin)
    search_in(tmp_path / "parts", clicks, secs=270).run()
    assert scored.asked == whole


def test_what_has_no_score_of_a_share_is_not_chosen_over_what_has(
    clicks: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored, _ = of_ten_secs(
        monkeypatch, lambda c, fold: (0.1 if c.model == "wide_deep" else 0.2) + 0.1 * fold
    )
    first = [Candidate(model=model, options={}) for model in ("logistic_regression", "wide_deep")]
    search = Search(make_settings(tmp_path, clicks, secs=75), clicks, first)
    search.run()
    search.choose()
    asked = [json.loads(key)[0] for key, _ in scored.asked]
    assert (asked.count("logistic_regression"), asked.count("wide_deep")) == (4, 2)
    assert search.record.chosen["score"] == pytest.approx(0.3)
    assert (search.chosen.model, search.chosen.options["epochs"]) == ("logistic_regression", 4)


def test_run_of_all_epochs_is_a_share_of_its_candidate(
    clicks: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = Scored(monkeypatch, distance)
    settings = make_settings(tmp_path, clicks)
    settings = dataclasses.replace(settings, base={**settings.base, "epochs": 4})
    plain = first_candidates(clicks, MODELS)[:1]
    search = Search(settings, clicks, plain)
    monkeypatch.setattr(tuning, "neighbors", lambda *_: [])
    search.run()
    search.choose()
    assert scored.asked == [(plain[0].key, fold) for fold in range(3)]
    assert search.chosen.options["epochs"] == 4


def test_tuned_model_is_the_one_that_its_line_trains(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dataset = write_dataset(tmp_path / "set", train=(900,), evaluation=(300,))
    monkeypatch.setattr(tune, "_FOLDS_OF_FEW", 2)
    only_tries(monkeypatch, Candidate(model="logistic_regression", options={}))
    model_dir = tmp_path / "m"
    flags = [f"--data={dataset.directory}", f"--model-dir={model_dir}", "--minutes=60"]
    flags += ["--metric=auc", "--seed=3"]
    assert command_line.run(tune.main, flags) == 0
    lines = capsys.readouterr().out.splitlines()
    record = read_json(model_dir / tune.FILE_NAME)
    (chosen,) = (tried for tried in record["tried"].values() if len(tried["scores"]) == 2)
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
    # What no search has left there is not written over.
    (model_dir / tune.FILE_NAME).unlink()
    assert "checkpoints of another run" in refused(capsys, *flags)


def test_candidates_are_scored_on_mixed_rows_if_the_eval_split_is_of_single_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_dataset(tmp_path / "set", train=(900,), evaluation=(300,))
    split = InputSummary(options={"split_by": "record"})
    dataset = dataclasses.replace(written, input=split)
    dataset.save()
    candidate = Candidate(model="logistic_regression", options={"epochs": 2})
    settings = make_settings(tmp_path, dataset, folds=2)
    base = {**settings.base, "seed": 5, "batch_size": 64}
    settings = dataclasses.replace(settings, base=base)
    monkeypatch.setattr(tuning, "neighbors", lambda *_: [])
    search = Search(settings, dataset, [candidate])
    search.run()
    (tried,) = search.record.tried.values()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("tuning-")]
    options = LedgerOptions(batch_rows=64, unit_rows=base["unit_rows"], seed=5)
    mixed = write_mixed(dataset, tmp_path / "mixed", options)
    for of, is_it in ((mixed, True), (dataset, False)):
        where = {"data": str(of.directory), "model_dir": str(tmp_path / of.directory.name / "m")}
        inner = {"inner_share": 0.2, "inner_fold": 1, "eval": "none"}
        run = candidate.run({**base, **where, **inner})
        result = embedps.Trainer(run.recommender(of), of, run.config).fit()
        score = result.scores[-1].get("inner_loss")
        assert (score == pytest.approx(tried.scores[1], rel=1e-6)) is is_it
    assert len(result.scores) == 2  # of each epoch, as nothing else is asked for


def test_search_of_the_command_reaches_neighbors(
    clicks: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = Scored(monkeypatch, distance)
    trained: list[Search] = []
    monkeypatch.setattr(tune, "_train", lambda config, search, *_: trained.append(search))
    flags = [f"--data={clicks.directory}", f"--model-dir={tmp_path / 'm'}", "--minutes=1e4"]
    assert command_line.run(tune.main, flags) == 0
    assert any("deepfm" in key and "dense_learning_rate" in key for key, _ in scored.asked)
    assert "nothing nearby is better" in trained[0].reason()
    candidate = trained[0].chosen
    assert (candidate.model, candidate.options["epochs"]) == ("deepfm", 6)
    run = tuning.final_run(candidate, trained[0]._settings, clicks)
    assert run.config.model_dir == str(tmp_path / "m")


@pytest.mark.parametrize(
    ("losses", "is_whole", "wanted"),
    [
        # The first epochs are the best by chance, as long as the end is about as good.
        ([0.44, 0.446, 0.45, 0.442], True, (0.442, 4)),
        ([0.45, 0.44, 0.43, 0.42], True, (0.42, 4)),
        # It overfits: of 4 epochs whose rate falls to 0, one and a half weigh as much as 2 - 1/4.
        ([0.44, 0.45, 0.46, 0.47], True, (0.44, 2)),
        ([0.44, 0.43, 0.45], False, (0.43, 3)),
    ],
)
def test_all_epochs_suit_a_run_whose_end_is_about_its_best(
    clicks: Dataset, tmp_path: Path, losses: list[float], is_whole: bool, wanted: tuple[float, int]
) -> None:
    search = search_in(tmp_path, clicks)
    base = {"data": "D", "model_dir": "M", "eval": "inline", "epochs": 4, "stop_patience": 3}
    run = Candidate(model="fm", options={}).run(base)
    lines = [
        {"number": i, "step": i, "examples": 1, "secs": 0.0, "lag_secs": 0.0, "inner_loss": loss}
        for i, loss in enumerate(losses)
    ]
    assert search._read(Scores.of(lines), run, is_whole=is_whole) == wanted
    settled = Candidate(model="fm", options={}).run({**base, "stop_patience": 0})
    if is_whole:
        assert search._read(Scores.of(lines), settled, is_whole=True) == (losses[-1], 4)
