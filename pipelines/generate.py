"""`python -m pipelines.generate`: writes a synthetic click log in Criteo's TSV format."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from embedps.config_fields import MAX_INT64
from embedps.console.command_line import Parser, number, path, run
from embedps.console.lines import say
from embedps.console.progress import rate_text
from embedps.pipelines.synthetic.click_log import Options, generate

_HELP = """\
Writes click logs in Criteo's format: each line has a label, 13 integers and 26 hexadecimal ids,
separated by tabs; an empty field is a missing value. Ids follow Zipf's law with the cardinalities
of Criteo Kaggle. A planted model (effects of single ids and of pairs of ids, curves of the
integers) draws the labels, so the best AUC that any model can reach is known. It is printed, and
written to FILE.json as best_auc.

The same rows and seed give the same bytes. A log of fewer rows is the start of a log of more rows.
Another seed is another planted model: to hold rows out, split one log. A finished file is kept.
"""
_EXAMPLES = """\
examples:
  python -m embedps.pipelines.generate --rows 2_000_000 --seed 1 --output logs/day_0.tsv.gz
  python -m embedps.pipelines.criteo --input 'logs/*.tsv.gz' --output data/criteo --num-shards 8
"""


def parse_options(argv: Sequence[str]) -> Options:
    """Parses the command line; raises UsageError."""
    parser = Parser(
        prog="python -m embedps.pipelines.generate",
        description=_HELP,
        epilog=_EXAMPLES,
    )
    parser.add_argument("--rows", type=number(int, least=1), required=True, help="rows to write")
    parser.add_argument(
        "--seed",
        type=number(int, least=0, most=MAX_INT64),
        default=0,
        help="seed of the rows and the planted model (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=path, required=True, metavar="FILE", help="a .tsv.gz or .tsv file"
    )
    parser.add_argument(
        "--threads", type=number(int, least=1), default=Options.threads, help="default: %(default)s"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    return Options(**vars(parser.parse_args(argv)))


def main(argv: Sequence[str]) -> None:
    """Runs the command line."""
    options = parse_options(argv)
    before = options.report_path.stat().st_mtime_ns if options.report_path.exists() else None
    started = time.monotonic()
    report = generate(options)
    wall_secs = time.monotonic() - started
    made = options.report_path.stat().st_mtime_ns != before
    say(
        f"{options.output}: {report['rows']:,} rows, {report['bytes']:,} bytes"
        + (rate_text(report["rows"], wall_secs, "rows") if made else ", already there, kept")
    )
    say(
        f"click rate {report['click_rate']:.4f}, best reachable AUC {report['best_auc']:.4f}, "
        f"log loss {report['best_logloss']:.4f} (report: {options.report_path})"
    )


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], all_or_nothing=True))
