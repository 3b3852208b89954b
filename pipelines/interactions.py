"""`python -m pipelines.interactions`: makes a retrieval dataset of users and their items."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from embedps.config_fields import MAX_COUNT
from embedps.console.command_line import Parser, number, path, run
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
  python -m embedps.train --model two_tower --data data/gowalla --model-dir runs/gowalla \\
      --held-out held_out --seen seen --normalize --temperature 0.15 --num-negatives 1000 \\
      --embedding-dim 64 --sparse-learning-rate 0.5 --metric recall@20 --at 20
"""


def parse_options(argv: Sequence[str]) -> Options:
    """Parses the command line; raises UsageError."""
    parser = Parser(
        prog="python -m embedps.pipelines.interactions", description=_HELP, epilog=_EXAMPLES
    )
    parser.add_argument(
        "--train", type=path, action="append", required=True, metavar="FILE", help="items to learn"
    )
    parser.add_argument(
        "--test", type=path, required=True, metavar="FILE", help="items to hold out"
    )
    parser.add_argument("--output", type=path, required=True, metavar="DIR")
    parser.add_argument(
        "--max-history",
        type=number(int, least=0, most=MAX_COUNT),
        default=Options.max_history,
        help="items of a history (default: %(default)s); 0 leaves histories empty",
    )
    parser.add_argument(
        "--num-shards",
        type=number(int, least=1, most=MAX_COUNT),
        default=Options.num_shards,
        help="files of the training split (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=number(int, least=0),
        default=Options.seed,
        help="of the order of the rows (default: %(default)s)",
    )
    options = vars(parser.parse_args(argv))
    return Options(**options | {"train": tuple(options["train"])})


def main(argv: Sequence[str]) -> None:
    """Runs the command line."""
    options = parse_options(argv)
    dataset, was_there = make_dataset(options)
    rows = {name: split.rows for name, split in dataset.splits.items()}
    say(
        f"{'kept' if was_there else 'wrote'} {dataset.directory}: {rows['train']:,} pairs to train "
        f"on, {rows['eval']:,} users to score; "
        + ", ".join(f"{c.cardinality:,} {c.name}s" for c in dataset.categorical[:2])
    )


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
