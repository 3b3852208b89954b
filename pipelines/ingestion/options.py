"""The flags of `python -m pipelines.ingest`, and of `pipelines.criteo` with its fixed schema."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from embedps.config_fields import MAX_COUNT, MAX_INT64, check, option, python_only, section
from embedps.console import flags
from embedps.data.dataset import ROW_GROUP_ROWS
from embedps.errors import UsageError
from embedps.features.table_schema import Table
from embedps.storage.id_texts import MAX_CHARACTERS

from .negatives import NegativeRule
from .splits import SplitRule

_HELP = {
    "criteo": """\
Reads Criteo click logs (Kaggle or Terabyte: a label, 13 integers and 26 hexadecimal ids, separated
by tabs; plain or packed) and writes a dataset. This is `pipelines.ingest --schema criteo`:
integers become log(1 + max(x, 0)) in float32 (missing: NaN), ids become int64 (missing: -1).
""",
    "ingest": """\
Reads tables of a declared schema and writes a dataset: CSV, TSV, JSON Lines or TFRecord of
tf.Example or Avro, plain or packed by gzip, bzip2, xz or zstd; Parquet; ORC. A schema's [[join]]
adds the columns of side tables, such as those of items, by their ids. With `pip install
'embedps[lake]'`, tables of Delta Lake and Iceberg are read too, without the rows deleted in them.
""",
}
_HELP_OUTPUT = """
  DIR/train/shard-*.parquet, DIR/eval/shard-*.parquet   shards; sizes differ by at most 1 row
  DIR/_transforms.json                                  the fitted transforms
  DIR/_texts/part-*.parquet                             with --keep-texts: ids and their texts
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
class HeldOut:
    """The held-out rows, by one of these."""

    eval_fraction: float | None = option(
        None,
        f"a share of the rows, by a hash of their records (default: {SplitRule.fraction})",
        least=0,
        below=1,
    )
    split_key: tuple[str, ...] = option(
        (),
        "hash only these columns, so that the rows of a key stay together",
        metavar="COLUMN",
        several=True,
    )
    eval_from: str | None = option(None, "the rows from this time on (UTC)", metavar="TIME")
    eval_where: str | None = option(
        None, "the rows where a column has a value, such as split=test", metavar="COLUMN=VALUE"
    )
    eval_last: int | None = option(
        None,
        "so many rows of each user that has more, the last ones by the schema's timestamp",
        least=1,
        most=MAX_COUNT,
        metavar="K",
    )
    by: str | None = option(None, "the user's column, for --eval-last", metavar="COLUMN")
    eval_input: tuple[str, ...] = option(
        (), "the rows of other files", metavar="PATTERN", several=True
    )

    def __post_init__(self) -> None:
        check(self)
        by_hash = self.eval_fraction is not None or bool(self.split_key)
        others = (self.eval_from, self.eval_where, self.eval_last, self.eval_input or None)
        if sum([by_hash, *(each is not None for each in others)]) > 1:
            raise UsageError(
                "give one of --eval-fraction (with or without --split-key), --eval-from, "
                "--eval-where, --eval-last, --eval-input"
            )
        if (self.eval_last is None) != (self.by is None):
            raise UsageError("give --eval-last and --by together, such as --eval-last 1 --by user")
        if self.eval_where is not None and "=" not in self.eval_where:
            raise UsageError(f"--eval-where must be COLUMN=VALUE, got {self.eval_where!r}")

    def rule(self, seed: int) -> SplitRule:
        """Makes the rule that holds these rows out.

        Raises:
          UsageError: `eval_from` is no time.
        """
        if self.eval_from is not None:
            return SplitRule(seed=seed, fraction=None, from_ms=_milliseconds(self.eval_from))
        if self.eval_where is not None:
            name, _, value = self.eval_where.partition("=")
            return SplitRule(seed=seed, fraction=None, where=(name, value))
        if self.eval_last is not None and self.by is not None:
            return SplitRule(seed=seed, fraction=None, last=self.eval_last, by=self.by)
        if self.eval_input:
            return SplitRule(seed=seed, fraction=None)
        fraction = SplitRule.fraction if self.eval_fraction is None else self.eval_fraction
        return SplitRule(seed=seed, fraction=fraction, keys=self.split_key)


@dataclass(frozen=True, kw_only=True)
class Negatives:
    """Rows of label 0 that are drawn, where the input has positive ones only."""

    negatives: int = option(
        0,
        "add so many copies of each positive row, with label 0 and another row's item",
        least=0,
        most=1000,
    )
    negatives_of: tuple[str, ...] = option(
        (),
        "the item's column, then those that come with the item, such as its category",
        metavar="COLUMN",
        several=True,
    )
    negatives_by: Literal["popularity", "uniform"] = option(
        "popularity", "whether an item is drawn as often as the rows have it, or each alike"
    )

    def __post_init__(self) -> None:
        check(self)
        if bool(self.negatives) != bool(self.negatives_of):
            raise UsageError(
                "give --negatives and --negatives-of together, such as --negatives 4 "
                "--negatives-of item"
            )

    def rule(self, seed: int) -> NegativeRule | None:
        """Makes the rule; None if no negatives are drawn."""
        if not self.negatives:
            return None
        return NegativeRule(
            per_row=self.negatives, of=self.negatives_of, by=self.negatives_by, seed=seed
        )


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of an ingestion: the input, the output, the split and Beam's flags.

    Attributes:
      declared: the table, if no schema names it.
    """

    input: tuple[str, ...] = option(
        MISSING,
        "files, folders or quoted patterns; or tables: a folder of Delta Lake or Iceberg, or "
        "iceberg://CATALOG/NAMESPACE.TABLE, each also with @VERSION",
        metavar="PATTERN",
        several=True,
    )
    output: Path = option(MISSING, "the dataset's directory", metavar="DIR")
    schema: str | None = option(
        None,
        "a TOML file, or a shipped schema: criteo, avazu, movielens_100k, …",
        metavar="FILE",
        required=True,
    )
    declared: Table | None = python_only(None)
    num_shards: int = option(
        8, "shards per split: the number of workers, or a multiple of it", least=1, most=99_999
    )
    row_group_rows: int = option(ROW_GROUP_ROWS, "rows per row group of a shard", least=1)
    held_out: HeldOut = section(HeldOut)
    negatives: Negatives = section(Negatives)
    max_bad_fraction: float = option(
        0.05, "fail if a larger share of the lines is bad", least=0, most=1
    )
    allow_damaged_files: bool = option(
        False,
        "use the readable part of a file that is cut, damaged or gone; without this flag such a "
        "file fails the job, because an unknown number of rows is lost",
    )
    seed: int = option(SplitRule.seed, "seed of the split and the order", least=0, most=MAX_INT64)
    transforms_of: Path | None = option(
        None,
        "use what the transforms of another dataset learned (means, deviations, ids that are "
        "kept), and learn nothing: for the data of later days, which a model of that dataset is to "
        "train on or to score",
        metavar="DATASET",
    )
    keep_texts: tuple[str, ...] = option(
        (),
        "also keep the texts of these columns' ids, so that `embedps table` and `checkpoint stats` "
        f"show them: of each, {MAX_CHARACTERS} characters at most",
        metavar="COLUMN",
        several=True,
    )
    max_texts: int = option(
        10_000_000, "keep those of the most frequent ids", least=1, most=MAX_COUNT
    )
    force: bool = option(False, "replace a finished dataset")
    verbose: bool = option(False, "log what Beam does")
    beam_flags: tuple[str, ...] = option((), "Beam's own flags", rest=True)

    def __post_init__(self) -> None:
        check(self)
        if self.output.exists() and not self.output.is_dir():
            raise UsageError(f"--output must be a directory, {self.output} is a file")
        self.split.check(self.table)
        if (rule := self.negatives.rule(self.seed)) is not None:
            rule.check(self.table)
        if other := [n for n in self.keep_texts if not self.table.keeps_fingerprints(n)]:
            raise UsageError(
                '--keep-texts must name columns of ids of texts (type = "string") without a hash, '
                f"got {', '.join(other)}"
            )

    @functools.cached_property
    def table(self) -> Table:
        """The declared table.

        Raises:
          UsageError: there is no schema, or it is not valid.
        """
        if self.declared is not None:
            return self.declared
        if self.schema is None:
            raise UsageError("an ingestion must have a schema, or a table that is declared")
        return Table.load(self.schema)

    @functools.cached_property
    def split(self) -> SplitRule:
        """The rule that holds rows out."""
        return self.held_out.rule(self.seed)


def parse_options(argv: Sequence[str], schema: str | None = None) -> Options:
    """Parses the command line; unknown flags are passed to Beam.

    Args:
      schema: the name of the command's fixed schema; None: the --schema flag gives it.

    Raises:
      UsageError: a flag or the schema is not valid.
    """
    name = schema or "ingest"
    shown = "" if schema else " --schema avazu"
    return flags.read(
        Options,
        argv,
        f"python -m embedps.pipelines.{name}",
        _HELP[name] + _HELP_OUTPUT,
        epilog=_EXAMPLES.format(name=name, schema=shown),
        fixed={"schema": schema} if schema else None,
    )


def _milliseconds(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--eval-from must be a time such as 2014-10-30T12:00, got {text!r}"
        ) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
