"""`python -m pipelines.interactions`: makes a retrieval dataset of users and their items."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from embedps.console import flags
from embedps.console.command_line import run
from embedps.console.lines import say
from embedps.pipelines.ingestion.interactions import Options, make_dataset

_HELP = """\
Makes a dataset for retrieval from files in LightGCN's format, which Gowalla, Yelp2018, Amazon-Book
and others come in: each line has a user's number and then those of his items, separated by blanks.
Files may be gzipped. --train may be given several times, such as for train and validation.

A row of the training split is a user and one of his items. A row of the held-out split is a user of
--test. Columns: user, item, history (the user's other items of --train, at most --max-history, the
last ones), held_out (items of --test) and seen (items of --train), which are empty in training.
"""
_EXAMPLES = """\
examples:
  python -m embedps.pipelines.interactions --train gowalla/train.txt --test gowalla/test.txt \\
      --output data/gowalla
  python -m embedps.train --model two_tower --preset retrieval --data data/gowalla --model-dir \\
      runs/gowalla
"""


def main(argv: Sequence[str]) -> None:
    """Runs the command line."""
    prog = "python -m embedps.pipelines.interactions"
    options = flags.read(Options, argv, prog, _HELP, epilog=_EXAMPLES)
    dataset, was_there = make_dataset(options)
    rows = {name: split.rows for name, split in dataset.splits.items()}
    say(
        f"{'kept' if was_there else 'wrote'} {dataset.directory}: {rows['train']:,} pairs to train "
        f"on, {rows['eval']:,} users to score; "
        + ", ".join(f"{c.cardinality:,} {c.name}s" for c in dataset.categorical[:2])
    )


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
