"""One page of a run: scores over steps and by slice, calibration, tables, speed and failures.

What it shows is read of files that others may have written, so each text is escaped, and what is no
number where one must be is left out.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypeGuard

from embedps.checkpoint.tools.inspect import format_bytes
from embedps.checkpoint.tools.run_statistics import (
    SERVER_HEADINGS,
    TABLE_HEADINGS,
    RunStatistics,
)
from embedps.config_fields import options_of
from embedps.console import html_page
from embedps.errors import printable
from embedps.run.config import TrainConfig
from embedps.score_names import TITLES, merit, scores_of, slice_of, stem

_MAX_PLOTS, _MAX_TEXT = 12, 200
_OF_SLICES = ("examples", "auc", "logloss", "calibration")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a page is made of.

    Attributes:
      name: of the run.
      evaluations: the lines of evaluation.jsonl.
      summary: of summary.json; empty while the run trains.
      statistics: of the tables; None if there are none.
      calibration: what the layer is; empty if there is none.
      texts: of ids that are slices.
    """

    name: str
    evaluations: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    statistics: RunStatistics | None = None
    calibration: str = ""
    texts: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def page(self) -> str:
        """Makes the page, HTML without scripts or downloads."""
        parts = [f"<h1>{_text(self.name)}</h1>", f"<p>{self._state()}</p>"]
        if self.evaluations:
            parts += ["<h2>Scores over steps</h2>", self._plots(), self._last_scores()]
            parts += [*self._slices(), *self._deciles()]
        if self.calibration:
            parts.append(f"<p>{_text(self.calibration)}</p>")
        parts += [*self._speed(), *self._tables(), *self._failures(), *self._options()]
        return html_page.page(self.name, parts)

    def _state(self) -> str:
        if not self.summary:
            return "The run has no summary yet."
        state = "finished" if self.summary.get("finished") is True else "not finished"
        stopped = self.summary.get("stopped_early")
        return state + (f": {_text(stopped)}" if stopped else "")

    def _plots(self) -> str:
        lines = [(line["step"], scores_of(line)) for line in self.evaluations]
        names = [name for name in scores_of(self.evaluations[-1]) if not slice_of(name)]
        plots = []
        for name in names[:_MAX_PLOTS]:
            points = [(s, v) for s, found in lines if _is_number(v := found.get(name))]
            points = sorted(dict(points).items())
            if points:
                plots.append(html_page.line_plot(TITLES.get(name, name), points, unit="step"))
        return f'<div class="plots">{"".join(plots)}</div>'

    def _last_scores(self) -> str:
        lines = [(line["step"], scores_of(line)) for line in self.evaluations]
        rows = []
        for name, value in lines[-1][1].items():
            if slice_of(name):
                continue
            known = [(step, v) for step, found in lines if _is_number(v := found.get(name))]
            best = max(known, key=lambda each: merit(name, each[1]), default=None)
            told = ["", ""] if best is None else [_number(best[1]), f"{best[0]:,}"]
            rows.append([_text(TITLES.get(name, name)), _number(value), *told])
        head = ["score", f"last, at step {lines[-1][0]:,}", "best", "at step"]
        return html_page.table(head, rows)

    def _slices(self) -> list[str]:
        """Makes a table per column: each slice's examples and scores of the last scoring."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name, value in self.evaluations[-1].items():
            column, _, shown = slice_of(name).partition("=")
            if column and stem(name).endswith(_OF_SLICES):
                found.setdefault(column, {}).setdefault(shown, {})[stem(name)] = value
        parts = []
        for column, slices in found.items():
            names = list(dict.fromkeys(name for scores in slices.values() for name in scores))
            rows = [
                [self._slice_text(value), *(_number(scores.get(name)) for name in names)]
                for value, scores in slices.items()
            ]
            head = [_text(column), *(_text(TITLES.get(name, name)) for name in names)]
            parts += [f"<h2>By {_text(column)}</h2>", html_page.table(head, rows)]
        return parts

    def _slice_text(self, value: str) -> str:
        try:
            return _text(self.texts.get(int(value), value))
        except ValueError:
            return _text(value)

    def _deciles(self) -> list[str]:
        parts = []
        for name, value in self.evaluations[-1].items():
            rows = _decile_rows(value) if name.endswith("deciles") else []
            if not rows:
                continue
            points = sorted((row["predicted"], row["actual"]) for row in rows)
            top = max(max(point) for point in points) or 1.0
            plot = html_page.line_plot(
                "actual rate", points, unit="predicted", bounds=(0.0, top), diagonal=True
            )
            cells = [
                [str(i + 1), *(_number(row.get(key)) for key in ("predicted", "actual", "lift"))]
                for i, row in enumerate(rows)
            ]
            head = ["tenth of the examples", "predicted", "actual", "lift"]
            parts += [f"<h2>Calibration and lift: {_text(name)}</h2>", plot]
            parts.append(html_page.table(head, cells))
        return parts

    def _speed(self) -> list[str]:
        forms = {"examples": "{:,.0f}", "examples_per_sec": "{:,.1f}", "wall_secs": "{:,.1f}"}
        told = [(n, f.format(v)) for n, f in forms.items() if _is_number(v := self.summary.get(n))]
        memory = self.summary.get("tables_memory_bytes")
        told += [("tables", format_bytes(int(memory)))] if _is_number(memory) else []
        for kind, counted in _pairs(self.summary.get("checkpoint")):
            told += [(f"{kind}: {n}", _number(v)) for n, v in _pairs(counted) if _is_number(v)]
        rows = [[_text(name.replace("_", " ")), value] for name, value in told]
        return ["<h2>Speed and size</h2>", html_page.table(["what", "value"], rows)] if rows else []

    def _tables(self) -> list[str]:
        found = self.statistics
        if found is None:
            return []
        return [
            f"<h2>Tables, until step {found.step:,}</h2>",
            _cells(TABLE_HEADINGS, found.tables),
            *(f"<p>At the present growth: {_text(line)}</p>" for line in found.forecast_lines()),
            _cells(SERVER_HEADINGS, found.servers),
        ]

    def _failures(self) -> list[str]:
        if not self.summary:
            return []
        units = dict(_pairs(self.summary.get("units")))
        counted = {
            "workers started again": self.summary.get("worker_restarts"),
            "evaluators started again": self.summary.get("evaluator_restarts"),
            "units that may have been visited again": units.get("repeated"),
            "units set aside": units.get("set_aside"),
        }
        rows = [[name, _number(v)] for name, v in counted.items() if _is_number(v)]
        recoveries = self.summary.get("recoveries")
        lines = [json.dumps(r) for r in recoveries] if isinstance(recoveries, list) else []
        rows.append(["recoveries from the loss of a server", str(len(lines))])
        problem = self.summary.get("evaluator_problem")
        lines += [f"scores are missing: {problem}"] if problem else []
        said = [f"<p>{_text(line)}</p>" for line in lines]
        return ["<h2>Failures</h2>", html_page.table(["what", "times"], rows), *said]

    def _options(self) -> list[str]:
        config = dict(_pairs(self.summary.get("config")))
        given = dict(_pairs(config.get("train")))
        defaults = {option.name: option.default for option in options_of(TrainConfig)}
        plain = json.loads(json.dumps(defaults, default=str))
        rows = [[n, v] for n, v in given.items() if plain.get(n) != v]
        rows += [[f"model: {n}", v] for n, v in _pairs(config.get("model"))]
        cells = [[_text(n), _text(v if isinstance(v, str) else json.dumps(v))] for n, v in rows]
        head = ["option", "value, if not the default"]
        return ["<h2>Options</h2>", html_page.table(head, cells)] if cells else []


def _cells(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return html_page.table(headings, [[_text(cell) for cell in row] for row in rows])


def _text(value: Any) -> str:
    shown = printable(str(value))
    return escape(shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}…")


def _is_number(value: Any) -> TypeGuard[float]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < 1e300 and not math.isnan(value)


def _number(value: Any) -> str:
    if not _is_number(value):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.5f}"


def _pairs(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []


def _decile_rows(value: Any) -> list[dict[str, Any]]:
    rows = [dict(_pairs(each)) for each in value] if isinstance(value, list) else []
    return [r for r in rows if all(_is_number(r.get(key)) for key in ("predicted", "actual"))]
