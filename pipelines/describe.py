"""`python -m pipelines.describe DIR`: profiles a dataset as text and as a page with plots."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

from embedps.config_fields import check, option
from embedps.console import flags
from embedps.console.command_line import run
from embedps.console.lines import say
from embedps.console.tables import FINGERPRINTS, make_console, make_table
from embedps.data.dataset import Dataset
from embedps.pipelines.report.html_page import make_page
from embedps.pipelines.report.profile import Profile, make_profile


def _print(profile: Profile) -> None:
    shards = make_table("shards", "shard", "rows", "MiB", "label rate")
    for shard in profile.shards:
        mib = shard.bytes / (1 << 20)
        shards.add_row(shard.path, f"{shard.rows:,}", f"{mib:,.1f}", f"{shard.label_rate:.4f}")
    headings = ("column", "transform", "missing", "mean", "std", "min", "max")
    numbers = make_table("numbers", *headings, left=2)
    for number in profile.numeric:
        values = (number.moments.mean, number.moments.std, number.low, number.high)
        shown = (f"{value:.4g}" for value in values)
        numbers.add_row(number.name, number.transform, f"{number.missing_rate:.1%}", *shown)
    ids = make_table("ids", "column", "distinct", "missing", "top id", "its share", "top 10", "100")
    for column in profile.ids:
        top = column.top.top(1)
        about = "" if column.cardinality_exact else "~"
        least = "" if column.top.exact else "≥"
        ids.add_row(
            f"{column.name}{' (list)' if column.ragged else ''}",
            f"{about}{column.cardinality:,}",
            f"{column.missing_rate:.1%}",
            str(top[0][0]) if top else "",
            *(f"{least}{column.top.share(number):.1%}" for number in (1, 10, 100)),
        )
    console = make_console()
    for table in (shards, numbers, ids):
        if table.row_count:
            console.print(table)
    if ids.row_count:
        console.print(FINGERPRINTS, style=None, highlight=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DescribeConfig:
    """Profiles a dataset.

    It shows the label rate of each shard, and the missing rate, spread, cardinality and share of
    the most frequent ids of each column.
    """

    directory: Path = option(dataclasses.MISSING, "a dataset", metavar="DIR", positional=True)
    html: Path | None = option(None, "also write a page with plots")

    def __post_init__(self) -> None:
        check(self)


def describe(config: DescribeConfig) -> None:
    """Prints the profile of a dataset, and writes its page if the config asks for one."""
    profile = make_profile(Dataset.open(config.directory))
    _print(profile)
    if config.html is not None:
        config.html.write_text(make_page(profile), encoding="utf-8")
        say(f"wrote {config.html}")


def main(argv: Sequence[str]) -> None:
    """Runs the command line."""
    prog = "python -m embedps.pipelines.describe"
    describe(flags.read(DescribeConfig, argv, prog, inspect.cleandoc(DescribeConfig.__doc__ or "")))


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], all_or_nothing=True))
