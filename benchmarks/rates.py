"""Lays out the results of a suite: tables of rates and ratios, and a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison import FLOOR, OURS
from benchmarks.layout import Part, Table

KIND_TITLES = {"sgd": "SGD", "adagrad": "Adagrad", "rowwise_adagrad": "row-wise Adagrad"}

Results = dict[str, Any]
"""A part of a result's JSON: a comparison, a configuration or a case."""


def case_title(case: Results) -> str:
    """Names a case's system and optimizer: "embedps, SGD"."""
    return ", ".join([case["system"], *filter(None, [KIND_TITLES.get(case["kind"])])])


def rate(value: float) -> str:
    """Formats a rate per second in thousands or millions."""
    return f"{value / 1e6:.2f}M" if value >= 1e6 else f"{value / 1e3:.1f}k"


def cell(case: Results, *, first: bool) -> str:
    """Formats a case's rate and the ratio of our rate to it."""
    text = rate(case["rate"]["median"])
    ratio = case["ours_to_this"]
    if ratio is not None and not first:
        text += f"  {ratio['median']:.2f}x ({ratio['min']:.2f} to {ratio['max']:.2f})"
    return text


def grid(configurations: Sequence[Results]) -> tuple[list[str], list[list[str]]]:
    """Returns the headings and rows of one group's table: cases by configurations.

    A configuration with a floor has a second column: which share of the floor each case is.
    """
    titles = dict.fromkeys(case_title(case) for each in configurations for case in each["cases"])
    headings = ["rate per second; ratio of ours to it"]
    rows = [[title] for title in titles]
    for each in configurations:
        cases = {case_title(case): case for case in reversed(each["cases"])}
        headings.append(each["configuration"])
        for row in rows:
            case = cases.get(row[0])
            row.append(cell(case, first=case is each["cases"][0]) if case else "-")
        if any("of_floor" in case for case in each["cases"]):
            headings.append("of the floor")
            for row in rows:
                share = cases.get(row[0], {}).get("of_floor")
                row.append(f"{share['median']:.2f}" if share else "")
    return headings, rows


def groups(comparison: Results) -> dict[str, list[Results]]:
    """Returns a comparison's configurations by group."""
    found: dict[str, list[Results]] = {}
    for each in comparison["configurations"]:
        found.setdefault(each["group"], []).append(each)
    return found


def best(cases: Sequence[Results]) -> Results | None:
    """Returns the case of the largest median rate; None without cases."""
    return max(cases, key=lambda case: float(case["rate"]["median"]), default=None)


def fastest(comparison: Results) -> Iterator[tuple[str, str, Results, Results]]:
    """Finds our fastest case and that of the others: group, precision, ours, theirs.

    "any precision" comes first in a group.
    """
    for group, configurations in groups(comparison).items():
        cases = [c for each in configurations for c in each["cases"] if c["task"] == "train"]
        ours = [case for case in cases if case["system"] == comparison["ours"]]
        others = [case for case in cases if not case["system"].startswith((OURS, FLOOR))]
        for precision in (None, *dict.fromkeys(case["precision"] for case in cases)):
            mine, theirs = (
                best([case for case in some if precision in (None, case["precision"])])
                for some in (ours, others)
            )
            if mine is not None and theirs is not None:
                yield group, precision or "any precision", mine, theirs


def verdicts(comparison: Results) -> list[str]:
    """Compares our best case with the best of the others, by group and precision.

    Where the best are the same in any precision and in one, the former says it.
    """
    told: dict[tuple[str, str], str] = {}
    for group, precision, mine, theirs in fastest(comparison):
        ratio = mine["rate"]["median"] / theirs["rate"]["median"]
        text = f"{_best(mine)} is {ratio:.2f}x of {_best(theirs)}"
        told.setdefault((group, text), f"{group}, {precision}: {text}")
    return list(told.values())


def _best(case: Results) -> str:
    median = rate(case["rate"]["median"])
    return f"{case_title(case)} ({median}, {case['precision']} {case['batch']})"


def layout(content: Results) -> list[Part]:
    """Lays out a suite: the tables of each comparison, who is fastest, and what is not measured."""
    parts: list[Part] = []
    for comparison in content["comparisons"]:
        for group, configurations in groups(comparison).items():
            heads, rows = grid(configurations)
            parts.append(Table(title=f"{comparison['title']}: {group}", heads=heads, rows=rows))
        absent = comparison["not_measured"].items()
        for lines in (
            verdicts(comparison),
            [f"not measured: {title}: {reason}" for title, reason in absent],
        ):
            if lines:
                parts.append("\n".join(f"- {line}" for line in lines))
    foreign = max(
        case["foreign_cores"]
        for comparison in content["comparisons"]
        for configuration in comparison["configurations"]
        for case in configuration["cases"]
    )
    config = content["config"]
    parts.append(
        f"Medians of {config['rounds']} rounds of {config['secs']:g} s; ratios are within a round, "
        f"from smallest to largest. Other processes used at most {foreign:.2f} cores."
    )
    return parts


def plot(comparisons: Sequence[Results], path: Path) -> None:
    """Draws a suite: a panel per group with a bar per case; lines show the spread of the rounds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = [
        (
            f"{comparison['title']}: {group}",
            [(each["configuration"], case) for each in configurations for case in each["cases"]],
        )
        for comparison in comparisons
        for group, configurations in groups(comparison).items()
    ]
    figure, axes = plt.subplots(
        len(panels),
        1,
        figsize=(11, sum(1.2 + 0.22 * len(bars) for _, bars in panels)),
        squeeze=False,
        layout="constrained",
        height_ratios=[4 + len(bars) for _, bars in panels],
    )
    for axis, (title, bars) in zip(axes[:, 0], panels, strict=True):
        _plot_bars(axis, bars)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("per second; lines: smallest to largest of the rounds", fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _plot_bars(axis: Any, bars: Sequence[tuple[str, Results]]) -> None:
    systems = list(dict.fromkeys(case["system"] for _, case in bars))
    for at, (_, case) in enumerate(bars):
        spread = case["rate"]
        errors = [[spread["median"] - spread["min"]], [spread["max"] - spread["median"]]]
        color = f"C{systems.index(case['system'])}"
        axis.barh(at, spread["median"], xerr=errors, color=color, capsize=2)
    labels = [f"{configuration}: {case_title(case)}" for configuration, case in bars]
    axis.set_yticks(range(len(bars)), labels, fontsize=7)
    axis.invert_yaxis()
