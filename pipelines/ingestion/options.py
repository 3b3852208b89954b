"""The flags of `python -m pipelines.ingest`, and of `pipelines.criteo` with its fixed schema."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from embedps.config_fields import MAX_INT64
from embedps.console.command_line import Parser, number, path, text
from embedps.data.dataset import ROW_GROUP_ROWS
from embedps.errors import UsageError
from embedps.features.table_schema import Table

from .splits import SplitRule

_HELP = {
    "criteo": """\
Reads Criteo click logs (Kaggle or Terabyte: a label, 13 integers and 26 hexadecimal ids, separated
by tabs; gzip, zstd or plain) and writes a dataset. This is `pipelines.ingest --schema criteo`:
integers become log(1 + max(x, 0)) in float32 (missing: NaN), ids become int64 (missing: -1).
""",
    "ingest": """\
Reads tables of a declared schema (CSV or TSV, gzip, zstd or plain; Parquet) and writes a dataset.
""",
}
_HELP_OUTPUT = """
  DIR/train/shard-*.parquet, DIR/eval/shard-*.parquet   shards; sizes differ by at most 1 row
  DIR/_transforms.json                                  the fitted transforms
  DIR/_bad_lines.jsonl                                  lines that are not rows, and why
  DIR/_dataset.json                                     written last: schema, counts, checksums

Rows are sorted by time if the schema has a timestamp, else shuffled by the seed. The same input and
options give the same bytes on any runner with any number of workers. A finished dataset of the same
input and options is kept.
"""
_EXAMPLES = """\
Beam pipeline options may be added. The default runner is FnApiRunner, in this process:
  python -m embedps.pipelines.{name} --input 'logs/*.gz' --output data/set --num-shards 8{schema}
  python -m embedps.pipelines.{name} --input 'logs/*.gz' --output data/set --num-shards 8{schema} \\
      --direct_num_workers=2 --direct_running_mode=multi_processing
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of an ingestion: the input, the output, the split and Beam's flags."""

    input: tuple[str, ...]
    output: Path
    table: Table
    eval_input: tuple[str, ...] = ()
    num_shards: int = 8
    row_group_rows: int = ROW_GROUP_ROWS
    max_bad_fraction: float = 0.05
    allow_damaged_files: bool = False
    split: SplitRule = field(default_factory=SplitRule)
    transforms_of: Path | None = None
    """A dataset whose transforms are used; None learns them from the rows to train on."""
    force: bool = False
    verbose: bool = False
    beam_flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fraction = self.split.fraction
        if fraction is not None and not 0.0 <= fraction < 1.0:
            raise UsageError(f"--eval-fraction must be within 0 <= x < 1, got {fraction}")
        if not 0.0 <= self.max_bad_fraction <= 1.0:
            raise UsageError(
                f"--max-bad-fraction must be within 0 <= x <= 1, got {self.max_bad_fraction}"
            )
        if self.num_shards > 99_999:
            raise UsageError(f"--num-shards must be at most 99999, got {self.num_shards}")
        if self.output.exists() and not self.output.is_dir():
            raise UsageError(f"--output must be a directory, {self.output} is a file")
        self.split.check(self.table)


def parse_options(argv: Sequence[str], schema: str | None = None) -> Options:
    """Parses the command line; unknown flags are passed to Beam.

    Args:
      argv: the flags.
      schema: the name of the command's fixed schema; None: the --schema flag gives it.

    Raises:
      UsageError: a flag or the schema is not valid.
    """
    parser = _parser(schema)
    known, beam_flags = parser.parse_known_args(argv)
    return Options(
        input=tuple(known.input),
        output=known.output,
        table=Table.load(schema or known.schema),
        eval_input=tuple(known.eval_input),
        num_shards=known.num_shards,
        row_group_rows=known.row_group_rows,
        max_bad_fraction=known.max_bad_fraction,
        allow_damaged_files=known.allow_damaged_files,
        split=_split_rule(known),
        transforms_of=known.transforms_of,
        force=known.force,
        verbose=known.verbose,
        beam_flags=tuple(beam_flags),
    )


def _split_rule(known: argparse.Namespace) -> SplitRule:
    by_hash = known.eval_fraction is not None or bool(known.split_key)
    if sum([by_hash, bool(known.eval_from), bool(known.eval_input)]) > 1:
        raise UsageError(
            "give one of --eval-fraction (with or without --split-key), --eval-from, --eval-input"
        )
    if known.eval_from:
        return SplitRule(seed=known.seed, fraction=None, from_ms=_milliseconds(known.eval_from))
    if known.eval_input:
        return SplitRule(seed=known.seed, fraction=None)
    fraction = SplitRule.fraction if known.eval_fraction is None else known.eval_fraction
    return SplitRule(seed=known.seed, fraction=fraction, key=known.split_key or "")


def _milliseconds(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--eval-from must be a time such as 2014-10-30T12:00, got {text!r}"
        ) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _parser(schema: str | None) -> Parser:
    name = schema or "ingest"
    shown = "" if schema else " --schema avazu"
    parser = Parser(
        prog=f"python -m embedps.pipelines.{name}",
        description=_HELP[name] + _HELP_OUTPUT,
        epilog=_EXAMPLES.format(name=name, schema=shown),
    )
    parser.add_argument(
        "--input",
        type=text,
        nargs="+",
        required=True,
        metavar="PATTERN",
        help="files, folders or quoted patterns",
    )
    parser.add_argument("--output", type=path, required=True, metavar="DIR")
    if schema is None:
        parser.add_argument(
            "--schema",
            type=text,
            required=True,
            metavar="FILE",
            help="a TOML file, or a shipped schema: criteo, avazu, movielens_100k, …",
        )
    parser.add_argument(
        "--num-shards",
        type=number(int, least=1),
        default=Options.num_shards,
        help="shards per split: the number of workers, or a multiple of it (default: %(default)s)",
    )
    parser.add_argument(
        "--row-group-rows",
        type=number(int, least=1),
        default=Options.row_group_rows,
        help="rows per row group of a shard (default: %(default)s)",
    )
    _add_split_flags(parser.add_argument_group("held-out rows, one of"))
    parser.add_argument(
        "--max-bad-fraction",
        type=float,
        default=Options.max_bad_fraction,
        help="fail if a larger share of the lines is bad (default: %(default)s)",
    )
    parser.add_argument(
        "--allow-damaged-files",
        action="store_true",
        help="use the readable part of a file that is cut, damaged or gone; without this flag such "
        "a file fails the job, because an unknown number of rows is lost",
    )
    parser.add_argument(
        "--seed",
        type=number(int, least=0, most=MAX_INT64),
        default=SplitRule.seed,
        help="seed of the split and the order (default: %(default)s)",
    )
    parser.add_argument(
        "--transforms-of",
        type=path,
        metavar="DATASET",
        help="use what the transforms of another dataset learned (means, deviations, ids that are "
        "kept), and learn nothing: for the data of later days, which a model of that dataset is to "
        "train on or to score",
    )
    parser.add_argument("--force", action="store_true", help="replace a finished dataset")
    parser.add_argument("--verbose", action="store_true", help="log what Beam does")
    return parser


def _add_split_flags(split: argparse._ArgumentGroup) -> None:
    split.add_argument(
        "--eval-fraction",
        type=float,
        help=f"a share of the rows, by a hash of their content (default: {SplitRule.fraction})",
    )
    split.add_argument(
        "--split-key",
        type=text,
        metavar="COLUMN",
        help="hash only this column, so that the rows of a key stay together",
    )
    split.add_argument(
        "--eval-from", type=text, metavar="TIME", help="the rows from this time on (UTC)"
    )
    split.add_argument(
        "--eval-input",
        type=text,
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="the rows of other files",
    )
