"""The result of a training run: its scores, speed and checkpoint, as text, HTML and a figure."""

from __future__ import annotations

import dataclasses
import html
import io
import shlex
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console.progress import rate_text
from embedps.errors import UsageError, printable
from embedps.run.cluster_config import NO_BOUND, STALE_STEPS
from embedps.run.summary import SUMMARY_NAME
from embedps.scheduling.unit_deaths import FILE_NAME as DEATHS_NAME
from embedps.score_names import (
    TITLES,
    check_score,
    is_higher_better,
    is_worse,
    merit,
    scores_of,
    slice_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

_CLICK_PLOTS = {"auc": "AUC", "normalized_entropy": "normalized entropy"}
_MAX_SHOWN = 10
_CLEARLY_OF_LOSS, _CLEARLY_OF_HIGHER = 0.05, 0.02  # worse than the best is no noise


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """The scores of one checkpoint on the held-out split; None where a score is undefined.

    Attributes:
      number: the checkpoint's.
      step: training steps done by then.
      auc: area under the ROC curve; higher is better.
      logloss: mean log loss; lower is better.
      normalized_entropy: log loss over the entropy of the base rate; lower is better.
      calibration: mean prediction over the base rate; 1 is best.
      examples: how many were scored.
      values: all scores by name: those above, or those of the model's metrics.
    """

    number: int
    step: int
    auc: float | None = None
    logloss: float | None = None
    normalized_entropy: float | None = None
    calibration: float | None = None
    examples: int = 0
    values: Mapping[str, float | None] = dataclasses.field(default_factory=dict)

    def get(self, name: str) -> float | None:
        """Returns a score by name; None where it is undefined."""
        return self.values.get(name)


class Scores(tuple[Score, ...]):
    """The scores of a run, in the order of their checkpoints."""

    __slots__ = ()

    @classmethod
    def of(cls, evaluations: Iterable[Mapping[str, Any]]) -> Scores:
        """Takes the lines of evaluation.jsonl."""
        names = [field.name for field in dataclasses.fields(Score) if field.name != "values"]
        return cls(
            Score(**{k: line[k] for k in names if k in line}, values=scores_of(line))
            for line in evaluations
        )

    def best(self, metric: str = "auc") -> Score | None:
        """Finds the best score, the first of several; None where no checkpoint has one.

        Args:
          metric: "auc", "logloss" or another score. Of losses and errors, less is better; of a
            calibration, what is nearer to 1.

        Raises:
          UsageError: there are scores, and none has this name.
        """
        if self and not any(metric in score.values for score in self) and any(self[-1].values):
            check_score(metric, self[-1].values)
        scored = [(v, score) for score in self if (v := score.get(metric)) is not None]
        return max(scored, key=lambda pair: merit(metric, pair[0]), default=(None, None))[1]


def _shown(name: str, score: float | None) -> str:
    return f"{TITLES.get(name, name)} " + ("-" if score is None else f"{score:.5f}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitCounts:
    """How many units a run has trained.

    Attributes:
      done: units done.
      total: units of all epochs.
      repeated: attempts that may have visited rows again.
      attempts: attempts at units; more than `done` if some failed or ran twice.
      set_aside: units that count as done though they were not trained: who trained them died.
    """

    done: int
    total: int
    repeated: int
    attempts: int
    set_aside: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitResult:
    """The result of `Trainer.fit`.

    Attributes:
      scores: held-out scores of this run's model directory, also of runs before it.
      examples: training examples visited, of all runs in the model directory.
      examples_per_sec: training speed.
      units: how many units are done.
      checkpoint: number of the last checkpoint; None where there is none.
      recoveries: one record for each loss of a server that the run recovered from.
      finished: nothing is left to train: all units are done, or a callback stopped the run.
      stopped_early: why a callback stopped the run; None if none did.
      evaluator_problem: why scores are missing; None if none are.
      model_dir: where checkpoints, scores and summary.json are.
      summary: all of summary.json.
    """

    scores: Scores
    examples: int
    examples_per_sec: float
    units: UnitCounts
    checkpoint: int | None
    recoveries: tuple[Mapping[str, Any], ...]
    finished: bool
    stopped_early: str | None
    evaluator_problem: str | None
    model_dir: Path
    summary: dict[str, Any] = dataclasses.field(repr=False)

    @classmethod
    def of(
        cls,
        summary: dict[str, Any],
        evaluations: Iterable[Mapping[str, Any]],
        model_dir: Path,
    ) -> FitResult:
        """Makes the result.

        Args:
          summary: of summary.json.
          evaluations: the lines of evaluation.jsonl.
          model_dir: where both are.
        """
        return cls(
            scores=Scores.of(evaluations),
            examples=summary["examples"],
            examples_per_sec=summary["examples_per_sec"],
            units=UnitCounts(**summary["units"]),
            checkpoint=summary["checkpoint"]["number"],
            recoveries=tuple(summary["recoveries"]),
            finished=summary["finished"],
            stopped_early=summary["stopped_early"],
            evaluator_problem=summary["evaluator_problem"],
            model_dir=model_dir,
            summary=summary,
        )

    def __str__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        # Wide, so that no line is wrapped: others read the lines too.
        Console(file=out, width=1000).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        if self.scores:
            yield self._table()
        yield from map(Text, self._lines())

    def _repr_html_(self) -> str:
        """Renders the result in a notebook."""
        names, cells = self._cells()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells
        )
        table = (
            f"<table><caption>Held-out scores</caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in self._lines())
        return (table if self.scores else "") + lines

    def plot(self) -> Figure:
        """Draws AUC and normalized entropy over the training steps.

        Returns:
          A matplotlib figure; `figure.savefig("scores.png")` writes it.

        Raises:
          UsageError: matplotlib is not installed, or there are no scores.
        """
        if not self.scores:
            raise UsageError(
                "there are no scores to plot: train with evaluation "
                "(--eval sidecar or inline, which needs an eval split)"
            )
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise UsageError(
                "plot() needs matplotlib, which is not installed: pip install 'embedps[plot]'"
            ) from error
        figure = Figure(figsize=(9, 3.5), layout="constrained")
        names = list(self.scores[-1].values) if self.scores else list(_CLICK_PLOTS)
        metrics = [n for n in _CLICK_PLOTS if n in names] or names[:2]
        plots = figure.subplots(1, len(metrics), squeeze=False)[0]
        for axes, metric in zip(plots, metrics, strict=True):
            better = "higher" if is_higher_better(metric) else "lower"
            label = f"{_CLICK_PLOTS.get(metric, metric)} ({better} is better)"
            scored = [(s.step, v) for s in self.scores if (v := s.get(metric)) is not None]
            axes.plot([step for step, _ in scored], [v for _, v in scored], marker="o")
            best = self.scores.best(metric)
            value = None if best is None else best.get(metric)
            if best is not None and value is not None:
                axes.axhline(value, linestyle=":", linewidth=1, color="gray")
                axes.set_title(f"best {value:.5f} at step {best.step:,}", fontsize="medium")
            axes.set_xlabel("training step")
            axes.set_ylabel(label)
            axes.grid(alpha=0.3)
        return figure

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(title="Held-out scores")
        head, rows = self._cells()
        for name in head:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*row)
        return table

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Gives the head and the rows of the table of scores."""
        shown = self.scores[-_MAX_SHOWN:]
        names = list(dict.fromkeys(n for score in shown for n in score.values if not slice_of(n)))
        rows = []
        for score in shown:
            values = (score.get(name) for name in names)
            cells = ("-" if value is None else f"{value:.5f}" for value in values)
            rows.append([f"{score.step:,}", *cells, f"{score.examples:,}"])
        return ["step", *(TITLES.get(name, name) for name in names), "examples"], rows

    def _asked(self, option: str) -> Any:
        """Gives an option of the run; None if it is not known."""
        return self.summary.get("config", {}).get("train", {}).get(option)

    def _usual_staleness(self) -> int:
        """Gives the median over workers of the median staleness of their steps, in updates."""
        medians = [worker["p50"] for worker in self.summary.get("staleness", {}).values()]
        batches = statistics.median_low(medians) if medians else 0
        per_update = self._asked("sync_group_size") if self._asked("sync") == "full" else 1
        return int(batches // (per_update or 1))

    def _lines_of_end(self, metric: str) -> list[str]:
        """Says that the run ends with its best checkpoint, or that it ends far below that one."""
        if ended := self.summary.get("ended_with"):
            best_is = f"{_shown(ended['metric'], ended['score'])} at step {ended['step']:,}"
            last = f"{_shown(ended['metric'], ended['last_score'])} at step {ended['last_step']:,}"
            return [f"ends with the best checkpoint again, {best_is}: the last had {last}"]
        after = self.summary.get("scores_after_step", -1)
        scores = Scores(score for score in self.scores if score.step > after)
        for name in (metric, "logloss", "loss", "auc"):
            best = scores.best(name) if scores and name in scores[-1].values else None
            share = _CLEARLY_OF_HIGHER if is_higher_better(name) else _CLEARLY_OF_LOSS
            if best is None or not is_worse(name, scores[-1].get(name), best.get(name), share):
                continue
            way = "train again with --end-with best --stop-patience 2"
            if best.number in CheckpointDirectory(self.model_dir).numbers():
                back = f"embedps checkpoint rollback {shlex.quote(str(self.model_dir))}"
                way = f"go back by `{back} --to {best.number}`, or {way}"
            return [
                f"ends clearly worse than it was: {_shown(name, scores[-1].get(name))}, "
                f"{_shown(name, best.get(name))} at step {best.step:,}: {way}"
            ]
        return []

    def _lines(self) -> list[str]:
        lines = []
        asked = self._asked("metric") or "auc"
        metric = next(
            (n for s in self.scores[-1:] for n in (asked, *s.values) if n in s.values), ""
        )
        best = self.scores.best(metric) if metric else None
        if best is not None and best != self.scores[-1]:
            lines.append(f"best {_shown(metric, best.get(metric))} at step {best.step:,}")
        lines += self._lines_of_end(metric)
        if self.recoveries:
            times = "once" if len(self.recoveries) == 1 else f"{len(self.recoveries)} times"
            lines.append(f"recovered from the loss of a server {times}")
        if aside := self.summary.get("set_aside"):
            names = ", ".join(aside[:_MAX_SHOWN])
            more = f" and {len(aside) - _MAX_SHOWN} more" if len(aside) > _MAX_SHOWN else ""
            lines.append(
                f"set aside, because who trained them died: {printable(names)}{more}; "
                f"remove {self.model_dir / DEATHS_NAME} and run again to try them again"
            )
        if self.stopped_early is not None:
            lines.append(f"stopped early: {self.stopped_early}")
        if self.evaluator_problem is not None:
            lines.append(f"scores are missing: {self.evaluator_problem}")
        stale = self._usual_staleness()
        if stale >= STALE_STEPS and self._asked("max_staleness_steps") in (None, NO_BOUND):
            advice = f"--max-staleness-steps {STALE_STEPS - 1}"
            if (self._asked("sync") or "none") != "none":
                advice = "steps of all workers, by --sync full"
            lines.append(
                f"half of the steps met {stale} updates of others or more: if scores are low, try "
                f"{advice}"
            )
        secs = self.summary.get("wall_secs", 0.0)
        rate = rate_text(self.examples_per_sec * secs, secs)
        state = "done" if self.finished else "stopped; run the same command again to resume"
        lines.append(
            f"{state}: {self.units.done}/{self.units.total} units, {self.examples:,} examples"
            f"{rate}; see {self.model_dir / SUMMARY_NAME}"
        )
        return lines
