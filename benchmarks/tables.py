"""A suite's results to look at: a table of ratios, and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.races import OURS

KIND_TITLES = {"sgd": "SGD", "adagrad": "Adagrad", "rowwise_adagrad": "row-wise Adagrad"}


def lane_title(lane: dict[str, Any]) -> str:
    """Who, and with which optimizer: "embedps, SGD"."""
    return ", ".join([lane["entrant"], *filter(None, [KIND_TITLES.get(lane["kind"])])])


def rate(value: float) -> str:
    """Thousands, or millions, a second."""
    return f"{value / 1e6:.2f}M" if value >= 1e6 else f"{value / 1e3:.1f}k"


def cell(lane: dict[str, Any], *, first: bool) -> str:
    """A lane's rate, and how many times ours is of it."""
    text = rate(lane["rate"]["median"])
    ratio = lane["ours_to_this"]
    if ratio is not None and not first:
        text += f"  {ratio['median']:.2f}x ({ratio['min']:.2f} to {ratio['max']:.2f})"
    return text


def grid(races: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of one group's table: a row a lane, a column a race."""
    titles = list(dict.fromkeys(lane_title(lane) for race in races for lane in race["lanes"]))
    rows = []
    for title in titles:
        row = [title]
        for race in races:
            found = [lane for lane in race["lanes"] if lane_title(lane) == title]
            row.append(cell(found[0], first=found[0] is race["lanes"][0]) if found else "-")
        rows.append(row)
    return ["a second; ours is so many times it", *(race["race"] for race in races)], rows


def groups(meeting: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The races of a meeting by group."""
    found: dict[str, list[dict[str, Any]]] = {}
    for race in meeting["races"]:
        found.setdefault(race["group"], []).append(race)
    return found


def best(lanes: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The lane of the greatest median; None of none."""
    return max(lanes, key=lambda lane: float(lane["rate"]["median"]), default=None)


def verdicts(meeting: dict[str, Any]) -> list[str]:
    """Ours at its best against the best of the others at theirs, a line a group and precision."""
    lines = []
    for group, races in groups(meeting).items():
        lanes = [x for race in races for x in race["lanes"] if x["task"] == "train"]
        ours = [lane for lane in lanes if lane["entrant"] == meeting["ours"]]
        others = [lane for lane in lanes if not lane["entrant"].startswith(OURS)]
        for precision in (None, *dict.fromkeys(lane["precision"] for lane in lanes)):
            mine, theirs = (
                best([lane for lane in some if precision in (None, lane["precision"])])
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


def _best(lane: dict[str, Any]) -> str:
    median = rate(lane["rate"]["median"])
    return f"{lane_title(lane)} ({median}, {lane['precision']} {lane['batch']})"


def show(meeting: dict[str, Any]) -> None:
    """Prints a meeting's tables."""
    console = Console(width=None if Console().is_terminal else 160)
    for group, races in groups(meeting).items():
        columns, rows = grid(races)
        table = Table(title=f"{meeting['title']}: {group}")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in verdicts(meeting):
        print(line)
    for title, why in meeting["absent"].items():
        print(f"not measured: {title}: {why}")


def markdown(meeting: dict[str, Any]) -> str:
    """A meeting's tables for a document."""
    parts = []
    for group, races in groups(meeting).items():
        columns, rows = grid(races)
        lines = [f"**{meeting['title']}: {group}**", ""]
        lines += ["| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *rows)]
        parts.append("\n".join(lines))
    parts += ["\n".join(f"- {line}" for line in verdicts(meeting))]
    parts += ["\n".join(f"- not measured: {t}: {w}" for t, w in meeting["absent"].items())]
    return "\n\n".join(part for part in parts if part)


def plot(meetings: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the suite: a panel a group, a bar a lane and race, with the spread of the rounds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = [(m["title"], g, races) for m in meetings for g, races in groups(m).items()]
    height = sum(1.2 + 0.22 * sum(len(r["lanes"]) for r in races) for _, _, races in panels)
    figure, axes = plt.subplots(
        len(panels),
        1,
        figsize=(11, height),
        squeeze=False,
        layout="constrained",
        height_ratios=[4 + sum(len(r["lanes"]) for r in races) for _, _, races in panels],
    )
    for axis, (title, group, races) in zip(axes[:, 0], panels, strict=True):
        lanes = [(race["race"], lane) for race in races for lane in race["lanes"]]
        entrants = list(dict.fromkeys(lane["entrant"] for _, lane in lanes))
        for at, (race, lane) in enumerate(lanes):
            spread = lane["rate"]
            errors = [[spread["median"] - spread["min"]], [spread["max"] - spread["median"]]]
            axis.barh(
                at,
                spread["median"],
                xerr=errors,
                color=f"C{entrants.index(lane['entrant'])}",
                capsize=2,
            )
            lane["label"] = f"{race}: {lane_title(lane)}"
        axis.set_yticks(range(len(lanes)), [lane.pop("label") for _, lane in lanes], fontsize=7)
        axis.invert_yaxis()
        axis.set_title(f"{title}: {group}", fontsize=9)
        axis.set_xlabel("a second; lines: least and greatest of the rounds", fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"wrote {path}")
