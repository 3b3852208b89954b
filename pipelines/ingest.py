"""`python -m pipelines.ingest`: turns tables of a declared schema into a dataset of shards."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence

from embedps.console.command_line import run
from embedps.console.lines import say
from embedps.console.progress import rate_text
from embedps.console.tables import make_console, make_table
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import KeptTexts
from embedps.data.repeated_rows import SPLIT_APART, are_split_apart
from embedps.pipelines.ingestion.options import parse_options


def _print_summary(dataset: Dataset, wall_secs: float | None) -> None:
    headings = ("split", "rows", "positives", "shards", "rows per shard", "MiB")
    table = make_table(str(dataset.directory), *headings)
    for name, split in dataset.splits.items():
        rows = [file.rows for file in split.files] or [0]
        per_shard = f"{min(rows):,}" + (f"-{max(rows):,}" if min(rows) != max(rows) else "")
        table.add_row(
            name,
            f"{split.rows:,}",
            f"{split.positives:,}",
            str(len(split.files)),
            per_shard,
            f"{sum(file.bytes for file in split.files) / (1 << 20):,.1f}",
        )
    make_console().print(table)
    read, bad = dataset.input.lines_read, dataset.input.lines_bad
    written = sum(split.rows for split in dataset.splits.values())
    drawn = written + bad - read
    say(
        f"{read:,} rows read = {written - drawn:,} written + {bad:,} bad"
        + (f" (see {dataset.directory / dataset.bad_lines})" if bad else "")
        + (f"; {drawn:,} negatives drawn" if drawn else "")
    )
    for file in dataset.input.files:
        if not file.lines:
            say(f"{file.path}: no rows (see {dataset.directory / dataset.bad_lines})")
    for side in dataset.input.joins:
        say(
            f"{side.name}: {side.rows:,} rows joined by {side.on}; {side.unmatched:,} of the rows "
            "read have none there"
        )
    if are_split_apart(dataset):
        say(SPLIT_APART)
    if dataset.texts.columns:
        say(_texts_line(dataset.texts))
    if wall_secs is None:
        say("already finished with the same input and options: kept")
    else:
        say(f"{wall_secs:.1f} s{rate_text(read, wall_secs, 'rows')}")


def _texts_line(texts: KeptTexts) -> str:
    left = f", {texts.left:,} of less frequent ids left (--max-texts)" if texts.left else ""
    shared = f"; {texts.shared:,} ids are of several texts each" if texts.shared else ""
    return f"{texts.kept:,} texts of {', '.join(texts.columns)} kept{left}{shared}"


def main(argv: Sequence[str], schema: str | None = None) -> None:
    """Runs the command line."""
    options = parse_options(argv, schema)
    # Beam logs every failure with a traceback; our errors are one line.
    logging.basicConfig(level=logging.DEBUG if options.verbose else logging.CRITICAL)
    # Importing Beam takes seconds and warns, so flags are checked and logging is set before.
    from embedps.pipelines.ingestion.make_dataset import make_dataset

    started = time.monotonic()
    dataset, made = make_dataset(options)
    _print_summary(dataset, time.monotonic() - started if made else None)


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], all_or_nothing=True))
