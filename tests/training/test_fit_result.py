"""What `Trainer.fit` returns: the scores, the table that is printed, the figure."""

import builtins
import io
from pathlib import Path

import pytest
import rich.console

from embedps.errors import UsageError
from embedps.training.fit_result import FitResult, Score, Scores
from tests.builders import make_trainer, write_dataset

AUCS = (None, 0.71, 0.75, 0.75, 0.74)


def make_result(*, aucs=AUCS, model_dir="data/[m]", **fields):
    evaluations = [
        {
            "number": i,
            "step": 1000 * i,
            "auc": auc,
            "logloss": 0.5 - 0.01 * i,
            "normalized_entropy": 0.9,
            "calibration": 1.0,
            "examples": 40_000,
            "secs": 1.5,
            "lag_secs": 2.0,
            "time": 3.0,
        }
        for i, auc in enumerate(aucs)
    ]
    summary = {
        "examples": 1_799_898,
        "wall_secs": 44.1,
        "examples_per_sec": 40_819.2,
        "units": {"done": 56, "total": 56, "repeated": 0, "attempts": 57},
        "checkpoint": {"number": 12},
        "recoveries": [],
        "finished": True,
        "stopped_early": None,
        "evaluator_problem": None,
        **fields,
    }
    return FitResult.of(summary, evaluations, Path(model_dir))


def test_result_of_a_run_has_what_its_summary_has(tmp_path):
    dataset = write_dataset(tmp_path / "data")
    result = make_trainer(dataset, tmp_path / "m", eval="inline", epochs=2).fit()
    summary = result.summary
    assert result.finished
    assert result.units.done == result.units.total == summary["units"]["total"]
    assert result.examples == summary["examples"] == 6000
    assert result.examples_per_sec == summary["examples_per_sec"] > 0
    assert result.checkpoint == summary["checkpoint"]["number"]
    assert result.recoveries == ()
    assert result.evaluator_problem is result.stopped_early is None
    assert len(result.scores) == 2
    assert result.scores[-1].auc == summary["evaluation"]["auc"]
    assert f"{result.scores[-1].auc:.5f}" in str(result)
    # A run that has nothing left to do has the same result.
    assert make_trainer(dataset, tmp_path / "m", eval="inline", epochs=2).fit() == result


@pytest.mark.parametrize(("metric", "number"), [("auc", 2), ("logloss", 4)])
def test_best_score_goes_by_the_metric(metric, number):
    best = make_result().scores.best(metric)
    assert best is not None
    assert best.number == number


@pytest.mark.parametrize(
    ("medians", "bound", "advised"),
    [((5, 4, 6), None, 5), ((3, 4, 4), -1, 4), ((3, 3, 9), None, 0), ((5, 4, 6), 8, 0)],
)
def test_steps_that_are_often_stale_are_told(medians, bound, advised):
    staleness = {str(k): {"p50": median} for k, median in enumerate(medians)}
    config = {"train": {"max_staleness_steps": bound}}
    text = str(make_result(staleness=staleness, config=config))
    told = f"half of the steps met {advised} updates of others or more: if scores are low, try "
    assert (f"{told}--max-staleness-steps 3" in text) == bool(advised)
    assert ("max-staleness" in text) == bool(advised)


@pytest.mark.parametrize(("sync", "met"), [("dense", 12), ("full", 6)])
def test_stale_steps_of_groups_are_told_in_updates_and_with_advice_that_goes_with_sync(sync, met):
    config = {"train": {"sync": sync, "sync_group_size": 2}}  # of "full", an update has two batches
    text = str(make_result(staleness={"0": {"p50": 12}}, config=config))
    told = f"half of the steps met {met} updates of others or more: if scores are low, try "
    assert f"{told}steps of all workers, by --sync full" in text
    assert "max-staleness" not in text


def test_best_score_of_none_is_none():
    assert make_result(aucs=()).scores.best() is None
    assert make_result(aucs=(None,)).scores.best() is None
    assert Scores([Score(number=1, step=1)]).best("logloss") is None


def test_best_score_of_an_unknown_metric_is_refused():
    with pytest.raises(UsageError, match=r"no score .accuracy. to go by: the model has auc"):
        make_result().scores.best("accuracy")


def test_printed_result_is_a_table_and_one_line_of_the_end():
    lines = str(make_result()).splitlines()
    assert lines[0].strip() == "Held-out scores"
    assert "│ 4,000 │ 0.74000 │  0.46000 │ 0.90000 │     1.00000 │   40,000 │" in lines
    assert lines[-2:] == [
        "best AUC 0.75000 at step 2,000",
        "done: 56/56 units, 1,799,898 examples, 40,819/s; see data/[m]/summary.json",
    ]


def test_a_run_of_less_than_a_second_tells_no_rate():
    text = str(make_result(wall_secs=0.02, examples_per_sec=3_079_588.0))
    assert "1,799,898 examples; see" in text
    assert "/s;" not in text


def test_printed_result_says_what_went_wrong():
    text = str(
        make_result(
            aucs=(),
            finished=False,
            recoveries=[{"why": "ps 0"}],
            stopped_early="the AUC [is] above 0.8",
            evaluator_problem="the evaluator ended",
        )
    )
    assert "Held-out scores" not in text
    assert text.splitlines() == [
        "recovered from the loss of a server once",
        "stopped early: the AUC [is] above 0.8",
        "scores are missing: the evaluator ended",
        "stopped; run the same command again to resume: 56/56 units, 1,799,898 examples, "
        "40,819/s; see data/[m]/summary.json",
    ]


def test_printed_table_has_the_last_ten_scores():
    text = str(make_result(aucs=[0.7] * 30))
    assert "19,000" not in text
    assert "20,000" in text


def test_rich_renders_the_same():
    out = io.StringIO()
    rich.console.Console(file=out, width=200).print(make_result())
    assert "\n".join(s.rstrip() for s in out.getvalue().splitlines()) == str(make_result())


def test_notebook_gets_a_table_whose_texts_are_escaped():
    page = make_result(stopped_early="a < b")._repr_html_()
    assert page.count("<tr>") == 1 + len(AUCS)
    assert "<td>0.75000</td>" in page
    assert "stopped early: a &lt; b" in page


def test_plot_draws_each_score_and_names_the_best(tmp_path):
    figure = make_result().plot()
    auc, entropy = figure.axes
    assert list(auc.lines[0].get_xdata()) == [1000, 2000, 3000, 4000]
    assert list(auc.lines[0].get_ydata()) == list(AUCS[1:])
    assert auc.get_title() == "best 0.75000 at step 2,000"
    assert len(entropy.lines[0].get_xdata()) == len(AUCS)
    figure.savefig(tmp_path / "scores.png")
    assert (tmp_path / "scores.png").stat().st_size > 1000


def test_plot_without_scores_says_how_to_get_some():
    with pytest.raises(UsageError, match=r"no scores to plot: train with evaluation"):
        make_result(aucs=()).plot()


def test_plot_without_matplotlib_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'embedps\[plot\]'") as caught:
        make_result().plot()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("aucs", "after", "told"),
    [
        ((0.71, 0.648), -1, True),
        ((0.71, 0.70), -1, False),
        ((0.71, 0.648), 0, False),  # the better score is of other data
        ((0.71, None), -1, False),
    ],
)
def test_end_that_is_clearly_worse_than_the_best_is_told(tmp_path, aucs, after, told):
    text = str(make_result(aucs=aucs, model_dir=tmp_path, scores_after_step=after))
    line = "ends clearly worse than it was: AUC 0.64800, AUC 0.71000 at step 0: train again with "
    assert (line + "--end-with best --stop-patience 2" in text) == told
    assert ("ends clearly worse" in text) == told
