"""Shows the results of a suite: tables of rates and ratios, and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.comparison import OURS

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
    """Returns the headings and rows of one group's table: cases by configurations."""
    titles = dict.fromkeys(case_title(case) for each in configurations for case in each["cases"])
    rows = []
    for title in titles:
        row = [title]
        for each in configurations:
            found = [case for case in each["cases"] if case_title(case) == title]
            row.append(cell(found[0], first=found[0] is each["cases"][0]) if found else "-")
        rows.append(row)
    headings = ["rate per second; ratio of ours to it"]
    return headings + [each["configuration"] for each in configurations], rows


def groups(comparison: Results) -> dict[str, list[Results]]:
    """Returns a comparison's configurations by group."""
    found: dict[str, list[Results]] = {}
    for each in comparison["configurations"]:
        found.setdefault(each["group"], []).append(each)
    return found


def best(cases: Sequence[Results]) -> Results | None:
    """Returns the case of the largest median rate; None without cases."""
    return max(cases, key=lambda case: float(case["rate"]["median"]), default=None)


def verdicts(comparison: Results) -> list[str]:
    """Compares our best case with the best of the others, by group and precision."""
    lines = []
    for group, configurations in groups(comparison).items():
        cases = [c for each in configurations for c in each["cases"] if c["task"] == "train"]
        ours = [case for case in cases if case["system"] == comparison["ours"]]
        others = [case for case in cases if not case["system"].startswith(OURS)]
        for precision in (None, *dict.fromkeys(case["precision"] for case in cases)):
            mine, theirs = (
                best([case for case in some if precision in (None, case["precision"])])
                for some in (ours, others)
            )
            if mine is None or theirs is None:
                continue
            ratio = mine["rate"]["median"] / theirs["rate"]["median"]
            lines.append(
                f"{group}, {precision or 'any precision'}, any batch size: {_best(mine)} is "
                f"{ratio:.2f}x of {_best(theirs)}"
            )
    return lines


def _best(case: Results) -> str:
    median = rate(case["rate"]["median"])
    return f"{case_title(case)} ({median}, {case['precision']} {case['batch']})"


def show(comparison: Results) -> None:
    """Prints a comparison's tables."""
    console = Console(width=None if Console().is_terminal else 160)
    for group, configurations in groups(comparison).items():
        headings, rows = grid(configurations)
        table = Table(title=f"{comparison['title']}: {group}")
        for heading in headings:
            table.add_column(heading)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in verdicts(comparison):
        print(line)
    for title, reason in comparison["not_measured"].items():
        print(f"not measured: {title}: {reason}")


def markdown(comparison: Results) -> str:
    """Renders a comparison's tables as Markdown."""
    parts = []
    for group, configurations in groups(comparison).items():
        headings, rows = grid(configurations)
        lines = [f"**{comparison['title']}: {group}**", ""]
        lines += [f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *rows)]
        parts.append("\n".join(lines))
    parts += ["\n".join(f"- {line}" for line in verdicts(comparison))]
    absent = comparison["not_measured"].items()
    parts += ["\n".join(f"- not measured: {title}: {reason}" for title, reason in absent)]
    return "\n\n".join(part for part in parts if part)


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
    print(f"wrote {path}")


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
