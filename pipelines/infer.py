"""`python -m pipelines.infer FILE`: proposes the schema of a file, for a person to edit."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from embedps.config_fields import check, option
from embedps.console import flags
from embedps.console.command_line import run
from embedps.console.lines import say
from embedps.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferConfig:
    """Proposes the schema of a file of CSV, JSON Lines, Avro, Parquet or ORC from its first rows.

    A table of Delta Lake or Iceberg is read as ingestion reads it.

    The schema is TOML with a comment for each column: what it holds, why it is declared so, and
    what looks wrong. Check it, then ingest the files: `--schema FILE`.
    """

    input: str = option(
        dataclasses.MISSING, "a file, or a pattern of which the first is read", metavar="FILE",
        positional=True,
    )  # fmt: skip
    output: Path | None = option(None, "write the schema here instead of printing it")
    label: str | None = option(None, "the column to predict", metavar="COLUMN")
    join_on: str | None = option(
        None,
        "propose a [[join]] of the file, by this column of the rows, instead of a schema",
        metavar="COLUMN",
    )
    rows: int = option(100_000, "rows to read, of the file's first 8 MiB if it is text", least=2)

    def __post_init__(self) -> None:
        check(self)
        if self.join_on is not None and self.label is not None:
            raise UsageError("give --label or --join-on: a side table needs no label")


def infer(config: InferConfig) -> str:
    """Proposes a schema, and says how many of the rows it reads.

    Returns:
      its TOML.

    Raises:
      UsageError: there is no such file or label, or the output exists.
      DatasetError: the file is of no format that ingestion reads.
    """
    from embedps.features.table_schema import Table
    from embedps.pipelines.ingestion.input_files import find_inputs
    from embedps.pipelines.ingestion.sample_columns import read_sample, read_table_sample
    from embedps.pipelines.ingestion.schema_proposal import propose

    if config.output is not None and config.output.exists():
        raise UsageError(f"--output {config.output} exists: remove it, or give another")
    first = find_inputs([config.input])[0]
    if first.of_lake is None:
        sample = read_sample(first.path, config.rows)
    else:
        sample = read_table_sample(first.of_lake, config.rows)
    join = None if config.join_on is None else (config.input, config.join_on)
    text = propose(sample, config.label, join=join)
    say(f"proposed from {first.path}", file=sys.stderr)
    try:
        node = tomllib.loads(text)
        if config.join_on is not None:
            (side,) = node["join"]
            (key,) = (each for each in side["column"] if each["as"] == "key")
            node["column"] = [{"name": config.join_on, "as": "key", "type": key["type"]}]
        Table.parse({"name": "proposed"} | node)
    except UsageError as error:
        say(f"it is to be completed: {error}", file=sys.stderr)
    return text


def main(argv: Sequence[str]) -> None:
    """Runs the command line."""
    prog = "python -m embedps.pipelines.infer"
    config = flags.read(InferConfig, argv, prog, inspect.cleandoc(InferConfig.__doc__ or ""))
    logging.basicConfig(level=logging.CRITICAL)  # Beam warns of clouds that are not used
    text = infer(config)
    if config.output is None:
        print(text, end="")
    else:
        config.output.write_text(text, encoding="utf-8")
        say(f"wrote {config.output}")


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], all_or_nothing=True))
