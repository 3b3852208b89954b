"""What acts on evaluations: when a run stops, what its learning rates become, what is kept."""

import json
import threading
from typing import Any

import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.errors import CheckpointError, UsageError
from embedps.run.summary import append_evaluation, read_evaluations
from embedps.score_names import merit
from embedps.training.callbacks import (
    Best,
    Callback,
    Callbacks,
    EarlyStopping,
    ReduceLearningRate,
    RunControl,
)
from embedps.training.fit_result import FitResult
from embedps.training.run_events import SavedCheckpoint, UnitEnd
from tests.builders import dataset_fixture, latest, make_trainer

dataset = dataset_fixture(evaluation=(700, 433))


def entry(number: int, auc: float | None, **fields: Any) -> dict[str, Any]:
    return {"number": number, "step": 10 * number, "auc": auc, "examples": 9, **fields}


@pytest.mark.parametrize(
    ("scores", "stops_at"),
    [
        ([0.5, 0.6, 0.7, 0.8], None),
        ([0.7, 0.6, 0.65], 3),  # as good as the one before is not good enough
        ([0.7, 0.7, 0.7], 3),
        ([0.7, 0.6, 0.71, 0.6, 0.7], 5),
        ([None, None], 2),  # never a score at all
        ([0.7, None, 0.8, 0.9], None),
    ],
)
def test_early_stopping_after_two_scores_that_are_no_better(scores, stops_at):
    run, callback = RunControl(), EarlyStopping(patience=2)
    for number, auc in enumerate(scores, 1):
        callback.on_evaluation(run, entry(number, auc))
        if run.reason is not None:
            break
    assert (number if run.reason is not None else None) == stops_at


def test_metrics_other_than_the_auc_improve_downwards():
    best = Best("logloss", min_delta=0.1)
    scores = [0.7, 0.65, 0.55, 0.8]
    assert [best.add({"logloss": score}) for score in scores] == [True, False, True, False]
    assert (best.score, best.evaluations_since) == (0.55, 1)


def test_a_calibration_is_better_nearer_to_1_and_a_loss_lower():
    best = Best("weighted_calibration", min_delta=0.01)
    scores = [2.0, 0.6, 0.601, 1.3, None, 0.0, 1.0, 1.001]
    found = [best.add({"weighted_calibration": score}) for score in scores]
    assert found == [True, True, False, True, False, False, True, False]
    for name in ("logloss", "like_rmse", "weighted_mae", "normalized_entropy"):
        assert merit(name, 0.2) > merit(name, 0.3)
    for name in ("auc", "like_weighted_auc", "auprc", "gauc"):
        assert merit(name, 0.3) > merit(name, 0.2)


def test_learning_rate_is_reduced_again_and_again():
    run, callback = RunControl(), ReduceLearningRate(patience=2, factor=0.5)
    factors = []
    for number, auc in enumerate([0.7, 0.6, 0.6, 0.6, 0.6, 0.8, 0.7], 1):
        callback.on_evaluation(run, entry(number, auc))
        factors.append(run.rate_factor)
    assert factors == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.25]


def test_lines_reach_callbacks_once_and_in_order_also_those_of_before(tmp_path):
    seen: list[tuple[int, int]] = []

    class Own(Callback):
        def __init__(self, name: int) -> None:
            self._name = name

        def on_evaluation(self, run, entry):
            seen.append((self._name, entry["number"]))

    append_evaluation(tmp_path, entry(1, 0.5))
    callbacks = Callbacks(tmp_path, [Own(0), Own(1)])
    callbacks.poll()
    append_evaluation(tmp_path, entry(2, 0.5))
    with open(tmp_path / "evaluation.jsonl", "a") as file:
        file.write(json.dumps(entry(3, 0.5))[:20])  # being written
    callbacks.poll()
    callbacks.poll()
    append_evaluation(tmp_path, entry(2, 0.6))  # scored again by an evaluator that came back
    append_evaluation(tmp_path, entry(4, 0.6))
    assert [e["number"] for e in callbacks.poll()] == [4]
    assert seen == [(name, number) for number in (1, 2, 4) for name in (0, 1)]
    assert [e["number"] for e in read_evaluations(tmp_path)] == [1, 2, 2, 4]


def test_evaluation_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "evaluation.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"cannot write .*evaluation.jsonl"):
        append_evaluation(tmp_path, entry(1, 0.5))


def test_best_checkpoint_is_kept_by_the_metric_of_the_run(tmp_path, dataset):
    """The scores are given, so that the best is one that the rest of the retention removes."""
    scores = [0.6, 0.9, 0.5, 0.5, 0.5, 0.5]
    trainer = make_trainer(
        dataset, tmp_path, epochs=len(scores), keep_chains=1, keep_best=1, metric="logloss"
    )
    committed = []
    for score in scores:
        for _ in range(trainer.ledger.units_per_epoch):
            unit = trainer.ledger.take()
            assert unit is not None
            trainer._setup.train_unit(*trainer._loop.unit_arguments(unit))
        committed.append(trainer._loop.save(final=True).number)
        append_evaluation(tmp_path, entry(committed[-1], 1 - score, logloss=1 - score))
    trainer.close()
    directory = CheckpointDirectory(tmp_path)
    best, other = committed[1:3]
    assert best in directory.numbers()
    assert other not in directory.numbers()
    directory.check_present(directory.read(best))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EarlyStopping(patience=0), "patience must be at least 1"),
        (lambda: ReduceLearningRate(patience=1, factor=1.5), r"factor in \(0, 1\)"),
        (lambda: Best("accuracy").add({"auc": 0.5}), "no score 'accuracy' .*: the model has auc"),
        (lambda: Best(""), "name of a metric must not be empty"),
        (lambda: Best("auc", min_delta=-1), "min_delta must be at least 0"),
        (lambda: RunControl().scale_learning_rates(0), "must be above 0"),
    ],
)
def test_wrong_option_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


# ---- a run ------------------------------------------------------------------------------------


def test_run_stops_early_by_its_own_scores_and_stays_stopped(tmp_path, dataset):
    """Rates that are too small to learn anything by: no score is better by so much."""
    fields: dict[str, Any] = {
        "epochs": 20,
        "eval": "inline",
        "stop_patience": 2,
        "min_delta": 0.2,
        "sparse_learning_rate": 1e-6,
        "dense_learning_rate": 1e-6,
    }
    summary = make_trainer(dataset, tmp_path, **fields).fit().summary
    assert summary["finished"]
    assert "auc has not been better than" in summary["stopped_early"]
    assert summary["units"]["done"] == 3 * summary["units"]["total"] // 20
    assert latest(tmp_path).final
    assert len(read_evaluations(tmp_path)) == 3
    again = make_trainer(dataset, tmp_path, **fields)
    assert again.finished
    assert again.fit().summary["units"]["done"] == summary["units"]["done"]
    more = make_trainer(dataset, tmp_path, **fields | {"stop_patience": 4}).fit().summary
    assert more["units"]["done"] == 5 * more["units"]["total"] // 20


def test_learning_rates_of_a_run_are_reduced_and_stay_so_when_it_is_resumed(tmp_path, dataset):
    fields: dict[str, Any] = {"eval": "inline", "reduce_patience": 1, "min_delta": 0.9}
    trainer = make_trainer(dataset, tmp_path, epochs=3, **fields)
    rates: list[float] = []
    arguments = trainer._loop.unit_arguments

    def record(unit):
        found = arguments(unit)
        rates.append(float(found[-1]))
        return found

    trainer._loop.unit_arguments = record  # type: ignore[method-assign]
    assert (
        trainer.fit().summary["learning_rate_factor"] == 0.25
    )  # the first score is the best there is
    per_epoch = len(rates) // 3
    wanted = [0.05] * (2 * per_epoch) + [0.025] * per_epoch
    assert rates == pytest.approx(wanted)
    resumed = make_trainer(dataset, tmp_path, epochs=4, **fields)
    assert resumed._effects.rate_factor == 0.25
    assert float(resumed._setup.set_dense_rate(0.25)) == pytest.approx(0.25 * 0.001)


def test_own_callback_ends_a_run_at_its_goal(tmp_path, dataset):
    class Goal(Callback):
        def on_evaluation(self, run, entry):
            if entry["examples"] == 1133 and entry["auc"] > 0:
                run.stop("good enough")

    trainer = make_trainer(dataset, tmp_path, epochs=9, eval="inline", callbacks=[Goal()])
    summary = trainer.fit().summary
    assert summary["stopped_early"] == "good enough"
    assert summary["units"]["done"] * 9 == summary["units"]["total"]


class Notes(Callback):
    """Notes what it is told, and by which thread."""

    def __init__(self) -> None:
        self.units: list[UnitEnd] = []
        self.saved: list[SavedCheckpoint] = []
        self.ended: list[FitResult] = []
        self.threads: set[int] = set()

    def on_unit_end(self, run, event):
        self.units.append(event)
        self.threads.add(threading.get_ident())

    def on_checkpoint(self, run, event):
        self.saved.append(event)
        self.threads.add(threading.get_ident())

    def on_train_end(self, run, result):
        self.ended.append(result)


def test_callbacks_are_told_of_units_checkpoints_and_the_end_of_the_run(tmp_path, dataset):
    notes = Notes()
    # No base is written beside a delta, as of three saves and more one may be by default.
    fields: dict[str, Any] = {"epochs": 2, "delta_steps": 5, "rebase": "one-shot"}
    trainer = make_trainer(dataset, tmp_path, **fields, callbacks=[notes])
    units = [unit for epoch in range(2) for unit in trainer.ledger.units_of(epoch)]
    result = trainer.fit()
    assert sorted((e.unit for e in notes.units), key=lambda unit: unit.position) == units
    assert all(0.1 < event.loss < 2 for event in notes.units)
    numbers = [event.number for event in notes.saved]
    assert numbers == sorted(set(numbers))
    assert (notes.saved[0].kind, notes.saved[-1].final) == ("base", True)
    last, counts = notes.saved[-1], result.summary["checkpoint"]
    assert (last.number, last.step) == (result.checkpoint, latest(tmp_path).step)
    kinds = {f"{event.kind}s" for event in notes.saved}
    for kind in kinds:
        written = [event.bytes for event in notes.saved if f"{event.kind}s" == kind]
        assert (len(written), sum(written)) == (counts[kind]["count"], counts[kind]["bytes"])
    assert notes.ended == [result]
    assert notes.threads == {threading.get_ident()}


@pytest.mark.parametrize("method", ["on_unit_end", "on_checkpoint", "on_train_end"])
def test_run_ends_by_the_error_of_a_callback_and_can_go_on(tmp_path, dataset, method):
    def fail(*_: Any) -> None:
        raise LookupError("this callback is wrong")

    wrong = type("Wrong", (Callback,), {method: fail})()
    trainer = make_trainer(dataset, tmp_path, delta_steps=1, callbacks=[wrong])
    with pytest.raises(LookupError, match="this callback is wrong"):
        trainer.fit()
    assert make_trainer(dataset, tmp_path, delta_steps=1).fit().finished


def test_what_is_no_callback_is_refused(tmp_path, dataset):
    class Unit:
        def on_unit_end(self, run, event):
            pass

    with pytest.raises(UsageError, match=r"write class Unit\(embedps.Callback\)"):
        make_trainer(dataset, tmp_path, callbacks=[Unit()])  # type: ignore[list-item]


def test_a_score_within_the_tolerance_counts_as_no_worse():
    best = Best("logloss", tolerance=0.03)
    since = []
    for number, loss in enumerate([0.5, 0.514, 0.52, 0.516, 0.51, 0.49, 0.51], 1):
        best.add(entry(number, 0.5, logloss=loss))
        since.append(best.evaluations_since)
    assert (since, best.score) == ([0, 0, 1, 2, 0, 0, 1], 0.49)
