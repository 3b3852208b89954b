"""Generated logs: bytes by seed, rates, skew, and a best AUC that is what it says."""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from embedps.console.command_line import run
from embedps.errors import UsageError
from embedps.features.table_schema import Table
from embedps.pipelines.generate import main
from embedps.pipelines.ingestion.line_blocks import LineBlock
from embedps.pipelines.ingestion.line_parser import LineParser
from embedps.pipelines.synthetic import click_log, planted_model
from embedps.pipelines.synthetic.click_log import CHUNK_ROWS, Options, generate
from embedps.pipelines.synthetic.click_rows import (
    COUNT_COLUMNS,
    ID_COLUMNS,
    MISSING_RANK,
    draw_rows,
)
from embedps.pipelines.synthetic.planted_model import PlantedModel, sigmoid
from tests import commands

ROWS = 100_000


@pytest.fixture(scope="module", autouse=True)
def calibrated_once() -> Iterator[None]:
    """Calibrates the model of a seed once: it is a pure function, as its own tests show."""
    calibrate = PlantedModel.calibrated
    made: dict[Any, PlantedModel] = {}

    def calibrated(seed: int, **wanted: float) -> PlantedModel:
        key = seed, planted_model.PILOT_ROWS, *sorted(wanted.items())
        if key not in made:
            made[key] = calibrate(seed, **wanted)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlantedModel, "calibrated", calibrated)
        yield


class ParsedRows(NamedTuple):
    """labels [rows]; integers [13, rows], NaN where missing; ids [26, rows], -1 where missing."""

    labels: np.ndarray
    integers: np.ndarray
    ids: np.ndarray


def parse(data: bytes) -> ParsedRows:
    block = LineBlock(first_line=1, num_lines=data.count(b"\n"), data=data)
    rows, bad = LineParser(Table.load("criteo")).parse(block)
    assert bad == []
    columns = [column.to_numpy() for column in rows.columns]
    return ParsedRows(columns[0], np.stack(columns[1:14]), np.stack(columns[14:]))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of ROWS rows: more than one chunk, the last one short."""
    path = tmp_path_factory.mktemp("log") / "log.tsv.gz"
    generate(Options(rows=ROWS, seed=3, output=path))
    return path


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes logs quickly, with other bytes: for tests of what becomes of files."""
    monkeypatch.setattr(click_log, "CHUNK_ROWS", 256)
    monkeypatch.setattr(planted_model, "PILOT_ROWS", 1024)


@pytest.fixture(scope="module")
def rows(log: Path) -> ParsedRows:
    return parse(gzip.decompress(log.read_bytes()))


def test_same_seed_gives_the_same_bytes_on_any_threads(log: Path, tmp_path: Path):
    path = tmp_path / "again.tsv.gz"
    generate(Options(rows=ROWS, seed=3, output=path, threads=1))
    assert path.read_bytes() == log.read_bytes()
    reports = [(p.parent / f"{p.name}.json").read_bytes() for p in (path, log)]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("num_rows", [1, 1000, CHUNK_ROWS, CHUNK_ROWS + 1])
def test_shorter_log_is_the_beginning_of_a_longer_one(log: Path, tmp_path: Path, num_rows: int):
    path = tmp_path / "short.tsv"
    generate(Options(rows=num_rows, seed=3, output=path))
    data = path.read_bytes()
    assert data.count(b"\n") == num_rows
    assert gzip.decompress(log.read_bytes()).startswith(data)


def test_another_seed_gives_other_rows(log: Path, tmp_path: Path):
    path = tmp_path / "other.tsv"
    generate(Options(rows=1000, seed=4, output=path))
    same = set(path.read_bytes().splitlines()) & set(gzip.decompress(log.read_bytes()).splitlines())
    assert not same


def test_click_rate_is_near_a_quarter(rows: ParsedRows, log: Path):
    assert abs(rows.labels.mean() - 0.25) < 0.01
    report = json.loads((log.parent / "log.tsv.gz.json").read_text())
    assert report["click_rate"] == pytest.approx(float(rows.labels.mean(dtype=np.float64)))
    assert (report["rows"], report["seed"]) == (ROWS, 3)
    assert report["bytes"] == log.stat().st_size


def test_missing_rates_are_the_columns(rows: ParsedRows):
    found = np.isnan(rows.integers).mean(axis=1)
    wanted = np.array([column.missing for column in COUNT_COLUMNS])
    # Five standard deviations of a binomial share.
    assert (np.abs(found - wanted) <= 5 * np.sqrt(wanted * (1 - wanted) / ROWS)).all()
    found = (rows.ids == -1).mean(axis=1)
    wanted = np.array([column.missing for column in ID_COLUMNS])
    assert (np.abs(found - wanted) <= 5 * np.sqrt(wanted * (1 - wanted) / ROWS)).all()
    assert abs(float(np.isnan(rows.integers[11]).mean()) - 0.77) < 0.01


def test_missing_rates_are_those_of_the_real_sample(samples: Path, rows: ParsedRows):
    real = parse(gzip.decompress((samples / "criteo_kaggle_12768.tsv.gz").read_bytes()))
    for ours, theirs in (
        (np.isnan(rows.integers), np.isnan(real.integers)),
        ((rows.ids == -1), (real.ids == -1)),
    ):
        np.testing.assert_allclose(ours.mean(axis=1), theirs.mean(axis=1), atol=0.01)


def test_ids_follow_zipf(rows: ParsedRows):
    for column, ids in zip(ID_COLUMNS, rows.ids, strict=True):
        values, counts = np.unique(ids[ids != -1], return_counts=True)
        assert len(values) <= column.cardinality
        assert values.max() < 1 << 32
        counts = np.sort(counts)[::-1]
        share = counts[0] / counts.sum()
        assert abs(share - column.top_share) < 0.01
        power = 1.0 - column.exponent
        # The bounded Zipf law's share of the ten most frequent ids.
        ten = min(10, column.cardinality)
        law = ((ten + 1.0) ** power - 1.0) / ((column.cardinality + 1.0) ** power - 1.0)
        assert counts[:10].sum() / counts.sum() == pytest.approx(law, abs=0.02)
    # Large tables have a long tail: many ids that are seen once.
    tail = np.unique(rows.ids[2][rows.ids[2] != -1], return_counts=True)[1]
    assert (tail == 1).sum() > 20_000


def test_counts_have_heavy_tails(rows: ParsedRows):
    for column, values in zip(COUNT_COLUMNS, rows.integers, strict=True):
        present = values[~np.isnan(values)]
        assert present.min() >= (-1 if column.negative else 0)
        assert abs((present == 0).mean() - column.zero) < 0.01
    large = rows.integers[4][rows.integers[4] > 0]
    assert large.mean() > 4 * np.median(large)


def exact_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The Mann-Whitney statistic over all pairs, ties (there are none) aside."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    positives = int(labels.sum())
    pairs = positives * (len(labels) - positives)
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / pairs)


def test_best_auc_is_the_auc_of_the_true_probabilities(log: Path, rows: ParsedRows):
    report = json.loads((log.parent / "log.tsv.gz.json").read_text())
    model = PlantedModel.calibrated(3)
    parts = []
    for index in range(2):
        rng = np.random.default_rng(np.random.SeedSequence(3, spawn_key=(1, index)))
        parts.append(sigmoid(model.logits(draw_rows(rng, CHUNK_ROWS))))
    probabilities = np.concatenate(parts)[:ROWS]
    labels = rows.labels == 1
    assert report["best_auc"] == pytest.approx(exact_auc(probabilities, labels), abs=1e-5)
    loss = -np.where(labels, np.log(probabilities), np.log1p(-probabilities)).mean()
    assert report["best_logloss"] == pytest.approx(loss, abs=1e-9)
    rate = labels.mean()
    entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    assert report["best_normalized_entropy"] == pytest.approx(loss / entropy)
    # Labels drawn from the probabilities are calibrated: five standard deviations.
    spread = np.sqrt((probabilities * (1 - probabilities)).sum()) / ROWS
    assert abs(probabilities.mean() - rate) < 5 * spread


@pytest.mark.parametrize("seed", [0, 3, 12345])
def test_best_auc_is_near_080_for_any_seed(tmp_path: Path, seed: int):
    report = generate(Options(rows=CHUNK_ROWS, seed=seed, output=tmp_path / "log.tsv.gz"))
    assert abs(report["best_auc"] - 0.80) < 0.01
    assert abs(report["click_rate"] - 0.25) < 0.01


@pytest.mark.usefixtures("small_chunks")
def test_finished_log_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "log.tsv.gz"
    flags = ["--rows", "100", "--output", str(path)]
    main(flags)
    assert "100 rows, " in capsys.readouterr().out
    stamp = path.stat().st_mtime_ns
    main(flags)
    assert "already there, kept" in capsys.readouterr().out
    assert path.stat().st_mtime_ns == stamp
    assert sorted(os.listdir(tmp_path)) == ["log.tsv.gz", "log.tsv.gz.json"]


@pytest.mark.usefixtures("small_chunks")
def test_log_of_other_rows_is_replaced_only_when_forced(tmp_path: Path):
    path = tmp_path / "log.tsv"
    generate(Options(rows=10, seed=0, output=path))
    with pytest.raises(UsageError, match=r"of 20 rows and seed 0, its report has rows 10.*--force"):
        generate(Options(rows=20, seed=0, output=path))
    generate(Options(rows=20, seed=0, output=path, force=True))
    assert path.read_bytes().count(b"\n") == 20


def test_file_without_report_is_not_replaced(tmp_path: Path):
    path = tmp_path / "log.tsv"
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match="no readable report"):
        generate(Options(rows=20, seed=0, output=path))
    assert path.read_bytes() == b"mine"


@pytest.mark.usefixtures("small_chunks")
def test_truncated_log_is_not_taken_for_finished(tmp_path: Path):
    path = tmp_path / "log.tsv"
    generate(Options(rows=20, seed=0, output=path))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"its report has bytes \d+"):
        generate(Options(rows=20, seed=0, output=path))


@pytest.mark.usefixtures("small_chunks")
def test_full_disk_is_one_line_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    output = tmp_path / "log.tsv"
    assert run(main, ["--rows=10", f"--output={output}"]) == 1
    assert capsys.readouterr().err == f"embedps: {output}: No space left on device\n"
    assert list(tmp_path.iterdir()) == []


def test_failure_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left on the device")

    monkeypatch.setattr(click_log, "format_rows", fail)
    with pytest.raises(OSError, match="no space left"):
        generate(Options(rows=20, seed=0, output=tmp_path / "log.tsv"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rows", "10"], "--output"),
        (["--rows", "0", "--output", "a.tsv"], "rows must be at least 1 but got 0"),
        (["--rows", "ten", "--output", "a.tsv"], "--rows: invalid int value: 'ten'"),
        (["--rows", "10", "--output", "a.csv"], "must end in .tsv.gz or .tsv"),
        (
            ["--rows", "10", "--output", "a.tsv", "--seed", "-1"],
            "seed must be at least 0 but got -1",
        ),
        (["--rows", "10", "--output", "a.tsv", "--colour"], "--colour"),
    ],
)
def test_bad_flag_is_a_usage_error(flags: list[str], message: str):
    with pytest.raises(UsageError) as caught:
        main(flags)
    assert message in str(caught.value)


def test_command_line_ends_with_one_line_and_code_2_on_bad_flags():
    result = commands.run("-m", "embedps.pipelines.generate", "--rows=x", "--output=a.tsv", code=2)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("embedps: ")


def test_chunks_do_not_depend_on_each_other():
    rng = np.random.default_rng(5)
    first = draw_rows(rng, 100)
    again = draw_rows(np.random.default_rng(5), 100)
    np.testing.assert_array_equal(first.counts, again.counts)
    np.testing.assert_array_equal(first.ranks, again.ranks)
    assert first.ranks.min() == MISSING_RANK
    assert first.head(7).num_rows == 7
