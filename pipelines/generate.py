"""`python -m pipelines.generate`: writes a synthetic click log in Criteo's TSV format."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from embedps.config_fields import MAX_INT64
from embedps.console.command_line import Parser, number, path, run
from embedps.console.progress import ProgressLine
from embedps.errors import UsageError
from embedps.storage.file_io import replacing
from pipelines.synthetic.click_rows import draw_rows
from pipelines.synthetic.planted_model import SHARES, PlantedModel, sigmoid
from pipelines.synthetic.scores import Score
from pipelines.synthetic.tsv_writer import format_rows

GENERATOR_VERSION = 1
"""Raise it when the same rows and seed give other bytes than before."""
CHUNK_ROWS = 1 << 16
_GZIP_LEVEL = 1
_GZIP_WBITS = 31

_HELP = """\
Writes click logs as Criteo's are: a label, 13 integers and 26 hexadecimal ids a line, tabs between,
an empty field where a value is missing. Ids follow Zipf's law with the cardinalities of Criteo
Kaggle. Labels are drawn from a planted model (own effects of frequent and of rare ids, pairs of
ids, curves of the integers), so the best AUC that any model can reach is known: it is printed and
written to FILE.json as best_auc.

The same rows and seed give the same bytes, and the log of fewer rows is the beginning of the log of
more. Another seed is another planted model: to hold rows out, split one log. A finished file is not
made again.
"""
_EXAMPLES = """\
examples:
  python -m pipelines.generate --rows 2_000_000 --seed 1 --output logs/day_0.tsv.gz
  python -m pipelines.criteo --input 'logs/*.tsv.gz' --output data/criteo --num-shards 8
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `pipelines.generate`."""

    rows: int
    seed: int
    output: Path
    threads: int = 2
    force: bool = False

    def __post_init__(self) -> None:
        if not self.output.name.endswith((".tsv", ".tsv.gz")):
            raise UsageError(f"--output must end in .tsv.gz or .tsv, got {self.output}")
        if self.output.is_dir():
            raise UsageError(f"--output must be a file, {self.output} is a directory")

    @property
    def report_path(self) -> Path:
        """Where the report goes: FILE.json."""
        return self.output.with_name(self.output.name + ".json")


def make_chunk(
    model: PlantedModel, index: int, num_rows: int, *, compress: bool
) -> tuple[bytes, Score]:
    """Makes one chunk's bytes: a pure function of the model's seed and the chunk's index.

    A compressed chunk is a gzip member of its own; members one after another are a gzip file.
    """
    rng = np.random.default_rng(np.random.SeedSequence(model.seed, spawn_key=(1, index)))
    # A shorter last chunk draws whole arrays too, so that a longer log begins with a shorter one.
    rows = draw_rows(rng, CHUNK_ROWS)
    labels_at = rng.random(CHUNK_ROWS)
    logits = model.logits(rows)
    labels = labels_at < sigmoid(logits)
    if num_rows < CHUNK_ROWS:
        rows, logits, labels = rows.head(num_rows), logits[:num_rows], labels[:num_rows]
    data = format_rows(labels, rows)
    if compress:
        data = zlib.compress(data, _GZIP_LEVEL, _GZIP_WBITS)
    return data, Score.of(logits, labels)


def generate(options: Options) -> dict[str, Any]:
    """Writes the log and its report; returns the report.

    Raises:
      UsageError: the output holds something else and `force` is not set.
    """
    if not options.force and (report := _finished_report(options)) is not None:
        return report
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.unlink(missing_ok=True)
    try:
        with replacing(options.output) as temporary:
            with ProgressLine("generating", options.rows, unit="rows") as progress:
                report = _write_log(options, temporary, progress)
            # The log comes last: where it is, so is its report.
            with replacing(options.report_path, sync=True) as path:
                path.write_text(json.dumps(report, indent=1) + "\n")
    except OSError as error:
        if error.errno is not None and error.filename is None:  # of a write
            error.filename = str(options.output)
        raise
    return report


def _write_log(options: Options, path: Path, progress: ProgressLine) -> dict[str, Any]:
    model = PlantedModel.calibrated(options.seed)
    score = Score()
    digest = xxhash.xxh3_64()
    size = 0
    with open(path, "wb") as out:
        for data, chunk_score in _chunks(model, options):
            out.write(data)
            digest.update(data)
            size += len(data)
            score += chunk_score
            progress.update(score.rows)
        out.flush()
        os.fsync(out.fileno())
    return {
        **_identity(options),
        "bytes": size,
        "xxh3_64": digest.hexdigest(),
        "click_rate": score.click_rate,
        "best_auc": score.auc,
        "best_logloss": score.logloss,
        "best_normalized_entropy": score.logloss / _entropy(score.click_rate),
        "shares": SHARES,
    }


def _chunks(model: PlantedModel, options: Options) -> Iterator[tuple[bytes, Score]]:
    """Gives the chunks in order; a few are made ahead, on threads (NumPy and zlib let them run)."""
    compress = options.output.name.endswith(".gz")
    pending: deque[Future[tuple[bytes, Score]]] = deque()
    pool = ThreadPoolExecutor(options.threads)
    try:
        for index in range(math.ceil(options.rows / CHUNK_ROWS)):
            num_rows = min(CHUNK_ROWS, options.rows - index * CHUNK_ROWS)
            pending.append(pool.submit(make_chunk, model, index, num_rows, compress=compress))
            if len(pending) > options.threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _identity(options: Options) -> dict[str, Any]:
    return {
        "format": "embedps.click_log",
        "version": GENERATOR_VERSION,
        "rows": options.rows,
        "seed": options.seed,
    }


def _finished_report(options: Options) -> dict[str, Any] | None:
    """Returns the report of a finished log of these options, None where there is no log."""
    hint = "give --force to replace it, or another --output"
    if not options.output.exists():
        return None
    try:
        report = json.loads(options.report_path.read_text("utf-8"))
        wanted = {**_identity(options), "bytes": options.output.stat().st_size}
        differing = [f"{k} {report.get(k)!r}" for k, v in wanted.items() if report.get(k) != v]
    except (OSError, ValueError, AttributeError):
        raise UsageError(
            f"{options.output} exists and has no readable report {options.report_path.name}: {hint}"
        ) from None
    if differing:
        raise UsageError(
            f"{options.output} must be the log of {options.rows} rows and seed {options.seed}, its "
            f"report has {', '.join(differing)}: {hint}"
        )
    return dict(report)


def _entropy(rate: float) -> float:
    if not 0.0 < rate < 1.0:
        return math.log(2.0)
    return -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)


def parse_options(argv: Sequence[str]) -> Options:
    """Parses the command line; raises UsageError."""
    parser = Parser(
        prog="python -m pipelines.generate",
        description=_HELP,
        epilog=_EXAMPLES,
    )
    parser.add_argument("--rows", type=number(int, least=1), required=True, help="lines to write")
    parser.add_argument(
        "--seed",
        type=number(int, least=0, most=MAX_INT64),
        default=0,
        help="of rows and planted model (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=path, required=True, metavar="FILE", help="a .tsv.gz file, or .tsv"
    )
    parser.add_argument(
        "--threads", type=number(int, least=1), default=Options.threads, help="default: %(default)s"
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")
    return Options(**vars(parser.parse_args(argv)))


def main(argv: Sequence[str]) -> None:
    """Runs the command line."""
    options = parse_options(argv)
    before = options.report_path.stat().st_mtime_ns if options.report_path.exists() else None
    started = time.monotonic()
    report = generate(options)
    wall_secs = time.monotonic() - started
    made = options.report_path.stat().st_mtime_ns != before
    print(
        f"{options.output}: {report['rows']:,} rows, {report['bytes']:,} bytes, "
        + (f"{report['rows'] / wall_secs:,.0f} rows/s" if made else "already there, kept")
    )
    print(
        f"click rate {report['click_rate']:.4f}, best reachable AUC {report['best_auc']:.4f}, "
        f"log loss {report['best_logloss']:.4f} (report: {options.report_path})"
    )


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], all_or_nothing=True))
