"""The flags of `python -m pipelines.criteo`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embedps.errors import UsageError
from pipelines.cli import ArgumentParser, positive_int, seed_int

_HELP = """\
Reads Criteo click logs (Kaggle or Terabyte: a label, 13 integers, 26 hexadecimal ids, tabs between;
gzip or plain) and writes a dataset:

  DIR/train/shard-*.parquet, DIR/eval/shard-*.parquet   shards of equal rows, in the logs' order
  DIR/_bad_lines.jsonl                                  lines that are no rows, and why
  DIR/_dataset.json                                     written last: schema, rows, counts, sums

Integers become log(1 + max(x, 0)) in float32 (missing is NaN), ids int64 (missing is -1). A row's
split depends on its content and the seed only. The same logs and options give the same bytes on any
runner and any number of workers; run again, a finished dataset is kept.
"""
_EXAMPLES = """\
Any Beam pipeline option may be added; the default runner is FnApiRunner, in this process:
  python -m pipelines.criteo --input 'logs/*.tsv.gz' --output data/criteo --num-shards 8
  python -m pipelines.criteo --input 'logs/*.tsv.gz' --output data/criteo --num-shards 8 \\
      --direct_num_workers=2 --direct_running_mode=multi_processing
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to read, where to write, and how Beam shall run it."""

    input: tuple[str, ...]
    output: Path
    num_shards: int = 8
    eval_fraction: float = 0.1
    seed: int = 0
    force: bool = False
    verbose: bool = False
    beam_flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.eval_fraction < 1.0:
            raise UsageError(f"--eval-fraction must be within 0 <= x < 1, got {self.eval_fraction}")
        if self.num_shards > 99_999:
            raise UsageError(f"--num-shards must be at most 99999, got {self.num_shards}")
        if self.output.exists() and not self.output.is_dir():
            raise UsageError(f"--output must be a directory, {self.output} is a file")


def parse_options(argv: Sequence[str]) -> Options:
    """Parses the command line; what is not ours is kept for Beam."""
    parser = ArgumentParser(
        prog="python -m pipelines.criteo",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--input", nargs="+", required=True, metavar="PATTERN", help="logs, as quoted patterns"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--num-shards",
        type=positive_int,
        default=Options.num_shards,
        help="shards of each split; a multiple of the workers (default: %(default)s)",
    )
    parser.add_argument(
        "--eval-fraction",
        type=float,
        default=Options.eval_fraction,
        help="share of rows held out (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=seed_int, default=Options.seed, help="of the split (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="replace a finished dataset")
    parser.add_argument("--verbose", action="store_true", help="log what Beam does")
    known, beam_flags = parser.parse_known_args(argv)
    settings = vars(known) | {"input": tuple(known.input), "beam_flags": tuple(beam_flags)}
    return Options(**settings)
