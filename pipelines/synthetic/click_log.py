"""Generates a synthetic click log in Criteo's TSV format, and the report beside it."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from embedps.config_fields import MAX_INT64, check, option
from embedps.console.progress import ProgressLine
from embedps.errors import UsageError
from embedps.storage.file_io import replacing

from .click_rows import draw_rows
from .planted_model import SHARES, PlantedModel, sigmoid
from .scores import Score
from .tsv_writer import format_rows

GENERATOR_VERSION = 1
"""Incremented when the same rows and seed give other bytes."""
CHUNK_ROWS = 1 << 16
_GZIP_LEVEL = 1
_GZIP_WBITS = 31


@dataclass(frozen=True, kw_only=True)
class Options:
    """The log to generate."""

    rows: int = option(MISSING, "rows to write", least=1)
    seed: int = option(0, "seed of the rows and the planted model", least=0, most=MAX_INT64)
    output: Path = option(MISSING, "a .tsv.gz or .tsv file")
    threads: int = option(2, "threads that make the rows", least=1)
    force: bool = option(False, "replace an existing file")

    def __post_init__(self) -> None:
        check(self)
        if not self.output.name.endswith((".tsv", ".tsv.gz")):
            raise UsageError(f"--output must end in .tsv.gz or .tsv, got {self.output}")
        if self.output.is_dir():
            raise UsageError(f"--output must be a file, {self.output} is a directory")

    @property
    def report_path(self) -> Path:
        """The path of the report: FILE.json."""
        return self.output.with_name(self.output.name + ".json")


def make_chunk(
    model: PlantedModel, index: int, num_rows: int, *, compress: bool
) -> tuple[bytes, Score]:
    """Makes the bytes of one chunk; they depend only on the model's seed and the chunk's index.

    A compressed chunk is a gzip member; a sequence of members is a gzip file.
    """
    rng = np.random.default_rng(np.random.SeedSequence(model.seed, spawn_key=(1, index)))
    # A shorter last chunk draws full arrays too, so a shorter log is the start of a longer one.
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
      UsageError: the output exists, is another log, and `force` is not set.
    """
    if not options.force and (report := _finished_report(options)) is not None:
        return report
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.unlink(missing_ok=True)
    try:
        with replacing(options.output) as temporary:
            with ProgressLine("generating", options.rows, unit="rows") as progress:
                report = _write_log(options, temporary, progress)
            # The log is renamed last, so a log always has its report.
            with replacing(options.report_path, sync=True) as path:
                path.write_text(json.dumps(report, indent=1) + "\n")
    except OSError as error:
        if error.errno is not None and error.filename is None:  # from a write
            error.filename = str(options.output)
        raise
    return report


def _write_log(options: Options, path: Path, progress: ProgressLine) -> dict[str, Any]:
    """Writes the log; returns its report."""
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
    """Yields the chunks in order; threads make a few ahead (NumPy and zlib release the GIL)."""
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
    """Returns the report of a finished log of these options; None if there is no log."""
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
    """Computes the entropy of a click rate in nats."""
    if not 0.0 < rate < 1.0:
        return math.log(2.0)
    return -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
