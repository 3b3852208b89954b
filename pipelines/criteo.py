"""`python -m pipelines.criteo`: turns Criteo click logs into a dataset of Parquet shards."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from embedps.console.command_line import run
from embedps.pipelines.ingest import main as ingest


def main(argv: Sequence[str]) -> None:
    """Runs the command line."""
    ingest(argv, schema="criteo")


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], all_or_nothing=True))
