"""`python -m pipelines.generate`: writes a synthetic click log in Criteo's TSV format."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from embedps.console import flags
from embedps.console.command_line import run
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


def main(argv: Sequence[str]) -> None:
    """Runs the command line."""
    prog = "python -m embedps.pipelines.generate"
    options = flags.read(Options, argv, prog, _HELP, epilog=_EXAMPLES)
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
