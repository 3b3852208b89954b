"""The Criteo pipeline end to end: rows, splits, bad lines, determinism, reruns, errors."""

from __future__ import annotations

import base64
import functools
import gzip
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.errors import DatasetError, UsageError
from embedps.pipelines import criteo
from embedps.pipelines.criteo_format import FIELDS
from embedps.pipelines.ingestion.input_files import find_inputs
from embedps.pipelines.ingestion.make_dataset import make_dataset
from embedps.pipelines.ingestion.options import parse_options
from tests.builders import ROOT, read_split
from tests.commands import run
from tests.pipelines import shop
from tests.pipelines.builders import files_of, make_line, make_lines, write_log

TWO_WORKERS = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")


make = functools.partial(shop.make, "criteo")
run_cli = functools.partial(run, "-m", "embedps.pipelines.criteo")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log of 60 rows, a.tsv, and the dataset of two shards that was made of it."""
    folder = tmp_path_factory.mktemp("finished")
    make(write_log(folder / "a.tsv", make_lines(60)), folder / "out", num_shards=2)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of that folder, of this test alone."""
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def numeric_value(field: str) -> float:
    return math.log1p(max(int(field), 0)) if field else math.nan


def test_every_row_is_in_one_split_in_a_random_seeded_order(tmp_path: Path):
    lines = make_lines(900)
    write_log(tmp_path / "logs/day_0.tsv.gz", lines[:500])
    write_log(tmp_path / "logs/day_1.tsv", lines[500:])
    dataset = make(
        tmp_path / "logs/day_*", tmp_path / "out", num_shards=4, eval_fraction=0.25, seed=5
    )
    # I1 of a built line is its number.
    numbers = {
        name: [round(math.expm1(value)) for value in read_split(dataset, name)["I1"].to_pylist()]
        for name in ("train", "eval")
    }
    # Of a random order, half of the neighbours ascend, within five standard deviations.
    rises = (np.diff(numbers["train"]) > 0).mean()
    assert abs(rises - 0.5) < 5 * 0.5 / np.sqrt(len(numbers["train"]))
    assert abs(np.corrcoef(numbers["train"], np.arange(len(numbers["train"])))[0, 1]) < 0.2
    assert sorted(numbers["train"] + numbers["eval"]) == list(range(900))
    assert 0.15 < len(numbers["eval"]) / 900 < 0.35
    for name in ("train", "eval"):
        table = read_split(dataset, name)
        for row, number in zip(table.to_pylist(), numbers[name], strict=True):
            fields = lines[number].decode().split("\t")
            wanted = [float(fields[0])]
            wanted += [numeric_value(field) for field in fields[1:14]]
            wanted += [int(field, 16) if field else -1 for field in fields[14:]]
            np.testing.assert_allclose([row[column] for column in FIELDS], wanted, rtol=1e-6)


def test_dataset_json_tells_what_the_logs_hold(tmp_path: Path):
    lines = make_lines(700)
    write_log(tmp_path / "logs/a.tsv.gz", lines)
    dataset = make(tmp_path / "logs/*", tmp_path / "out", num_shards=3)
    dataset.verify()
    assert Dataset.open(tmp_path / "out") == dataset
    fields = [line.decode().split("\t") for line in lines]
    for i, numeric in enumerate(dataset.numeric):
        assert numeric.name == f"I{i + 1}"
        assert numeric.missing == sum(row[1 + i] == "" for row in fields)
    for i, categorical in enumerate(dataset.categorical):
        values = [row[14 + i] for row in fields]
        assert categorical.name == f"C{i + 1}"
        assert categorical.missing == values.count("")
        assert categorical.cardinality == len(set(values) - {""})
        assert categorical.cardinality_exact
    assert sum(split.positives for split in dataset.splits.values()) == sum(
        row[0] == "1" for row in fields
    )
    for split in dataset.splits.values():
        rows = [file.rows for file in split.files]
        assert len(rows) == 3
        assert max(rows) - min(rows) <= 1
    assert (dataset.input.lines_read, dataset.input.lines_bad) == (700, 0)
    assert dataset.columns == FIELDS
    assert set(os.listdir(tmp_path / "out")) == {
        "train",
        "eval",
        "_dataset.json",
        "_transforms.json",
        "_bad_lines.jsonl",
    }


@pytest.mark.slow
def test_dataset_is_the_same_bytes_on_any_runner_and_workers(tmp_path: Path):
    lines = make_lines(1500)
    lines[700] = b"not a row \xff"
    for i in range(3):
        write_log(tmp_path / f"logs/day_{i}.tsv.gz", lines[i * 500 : (i + 1) * 500])
    make(tmp_path / "logs/*", tmp_path / "one", num_shards=4)
    again = make(tmp_path / "logs/*", tmp_path / "again", num_shards=4)
    assert again.input.lines_bad == 1
    result = run_cli(
        "--input", tmp_path / "logs/*", "--output", tmp_path / "two", "--num-shards=4", *TWO_WORKERS
    )
    assert result.stderr == ""
    assert files_of(tmp_path / "one") == files_of(tmp_path / "again") == files_of(tmp_path / "two")


def test_split_and_rows_do_not_depend_on_how_logs_are_cut_or_packed(tmp_path: Path):
    lines = make_lines(600)
    write_log(tmp_path / "one/log.tsv.gz", lines)
    for i, start in enumerate((0, 50, 400)):
        write_log(tmp_path / f"three/part{i}.txt", lines[start : [50, 400, 600][i]])
    one = make(tmp_path / "one/*", tmp_path / "a", num_shards=2)
    three = make(tmp_path / "three/*", tmp_path / "b", num_shards=2)
    for name in ("train", "eval"):
        assert [file.rows for file in one.splits[name].files] == [
            file.rows for file in three.splits[name].files
        ]
        rows = [sorted(map(repr, read_split(d, name).to_pylist())) for d in (one, three)]
        assert rows[0] == rows[1]


def test_bad_lines_are_set_aside_with_file_line_and_reason(tmp_path: Path):
    lines = make_lines(400)
    write_log(tmp_path / "logs/a.tsv", [*lines[:10], b"short\tline", *lines[10:200]])
    write_log(tmp_path / "logs/b.tsv.gz", [make_line("7"), *lines[200:], make_line() + b"\xfe"])
    dataset = make(tmp_path / "logs/*", tmp_path / "out", num_shards=2)
    records = [json.loads(line) for line in (tmp_path / "out/_bad_lines.jsonl").open()]
    assert [(r["file"], r["line"]) for r in records] == [
        ("a.tsv", 11),
        ("b.tsv.gz", 1),
        ("b.tsv.gz", 202),
    ]
    assert records[0]["text"] == "short\tline"
    assert "40 fields, got 2" in records[0]["reason"]
    assert "label must be 0 or 1" in records[1]["reason"]
    assert base64.b64decode(records[2]["base64"]) == make_line() + b"\xfe"
    assert (dataset.input.lines_read, dataset.input.lines_bad) == (403, 3)
    assert [file.lines_bad for file in dataset.input.files] == [1, 2]
    assert sum(split.rows for split in dataset.splits.values()) == 400


def test_line_of_several_blocks_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("embedps.pipelines.ingestion.line_blocks.MAX_LINE_BYTES", 1000)
    monkeypatch.setattr("embedps.pipelines.ingestion.unpacked_stream._READ_BYTES", 512)
    monkeypatch.setattr("embedps.pipelines.ingestion.line_blocks.BLOCK_BYTES", 2000)
    lines = make_lines(30)
    log = write_log(tmp_path / "a.tsv", [*lines[:9], b"x" * 20_000, *lines[9:]])
    dataset = make(log, tmp_path / "out", num_shards=1)
    records = [json.loads(line) for line in (tmp_path / "out/_bad_lines.jsonl").open()]
    assert len(records) > 1
    assert {record["line"] for record in records} == {10}
    assert "".join(record["text"] for record in records) == "x" * 20_000
    assert (dataset.input.lines_read, dataset.input.lines_bad) == (31, 1)
    assert sum(split.rows for split in dataset.splits.values()) == 30


def test_more_shards_than_rows_gives_empty_shards(tmp_path: Path):
    write_log(tmp_path / "a.tsv", make_lines(5))
    dataset = make(tmp_path / "a.tsv", tmp_path / "out", num_shards=8, eval_fraction=0.0)
    assert [file.rows for file in dataset.splits["train"].files] == [0, 1, 0, 1, 1, 0, 1, 1]
    assert dataset.splits["eval"].files == ()
    assert read_split(dataset, "train").num_rows == 5


def test_flipped_bit_of_a_shard_is_told_by_its_page_checksum(copied: Path):
    path = Dataset.open(copied / "out").paths("train")[0]
    column = pq.read_metadata(path).row_group(0).column(5)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


def test_rerun_keeps_a_finished_dataset(finished: Path):
    out = finished / "out"
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    options = shop.options_of("criteo", finished / "a.tsv", out, num_shards=2)
    dataset, made_again = make_dataset(options)
    assert not made_again
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == stamps
    assert dataset == Dataset.open(out)


def test_finished_dataset_of_other_input_is_not_replaced_unless_forced(copied: Path):
    log, out = copied / "a.tsv", copied / "out"
    lines = log.read_bytes().splitlines()
    with pytest.raises(
        UsageError, match=r"made with .*'num_shards': 2.*wanted another num_shards.*--force"
    ):
        make(log, out, num_shards=3)
    write_log(log, [lines[1], lines[0], *lines[2:]])
    with pytest.raises(UsageError, match=r"a\.tsv held other bytes"):
        make(log, out, num_shards=2)
    write_log(log, lines[:40])
    with pytest.raises(UsageError, match="other input files"):
        make(log, out, num_shards=2)
    dataset = make(log, out, num_shards=1, force=True)
    assert dataset.input.lines_read == 40
    assert sorted(os.listdir(out / "train")) == ["shard-00000-of-00001.parquet"]


def test_damaged_dataset_is_not_taken_for_finished(copied: Path):
    Dataset.open(copied / "out").paths("train")[0].unlink()
    with pytest.raises(UsageError, match=r"damaged dataset.*shard-00000.*--force"):
        make(copied / "a.tsv", copied / "out", num_shards=2)


def test_leftovers_of_a_killed_run_are_removed(finished: Path, tmp_path: Path):
    for name in ("_work/run-00000-0000000.arrow", "train/shard-00000-of-00009.parquet"):
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_bytes(b"left")
    make(finished / "a.tsv", tmp_path / "out", num_shards=2)
    assert files_of(tmp_path / "out") == files_of(finished / "out")


def test_logs_without_a_good_line_are_no_dataset(tmp_path: Path):
    log = write_log(tmp_path / "a.tsv", [b"nothing", b"here"])
    with pytest.raises(DatasetError, match=r"no line is a good row.*_bad_lines"):
        make(log, tmp_path / "out", max_bad_fraction=1.0)
    assert os.listdir(tmp_path / "out") == ["_bad_lines.jsonl"]
    assert len((tmp_path / "out/_bad_lines.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--input is required"),
        (("--num-shards=0",), "num_shards must be at least 1 but got 0"),
        (("--eval-fraction=1",), "eval_fraction must be below 1 but got 1.0"),
        (("--eval-fraction=nan",), "eval_fraction must be at least 0 but got nan"),
        (("--seed=-1",), "seed must be at least 0 but got -1"),
        (("--output=/dev/null",), "--output must be a directory"),
    ],
)
def test_bad_flag_is_a_usage_error(flags: tuple[str, ...], message: str):
    needed = ("--input=logs", "--output=out") if flags else ()
    with pytest.raises(UsageError) as caught:
        parse_options([*needed, *flags], "criteo")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--no-such-flag=1",), "a flag of this command or of Beam: --no-such-flag=1"),
        (("--direct_num_workers=x",), "direct_num_workers"),
        (("--runner=NoSuchRunner",), "NoSuchRunner"),
    ],
)
def test_bad_beam_flag_is_a_usage_error_before_anything_is_written(
    tmp_path: Path, flags: tuple[str, ...], message: str
):
    log = write_log(tmp_path / "a.tsv", make_lines(3))
    with pytest.raises(UsageError, match=message):
        make(log, tmp_path / "out", beam_flags=flags)
    assert not (tmp_path / "out").exists()


def test_absent_input_is_a_usage_error(tmp_path: Path):
    write_log(tmp_path / "a.tsv", make_lines(3))
    with pytest.raises(UsageError, match="must match a file, there is none"):
        find_inputs([str(tmp_path / "a.tsv"), str(tmp_path / "absent*")])


def test_inputs_are_sorted_without_repeats(tmp_path: Path):
    for name in ("b/x.tsv", "a/x.tsv"):
        write_log(tmp_path / name, make_lines(1))
    tasks = find_inputs([str(tmp_path / "*/x.tsv"), str(tmp_path / "b/x.tsv")])
    assert [task.name for task in tasks] == ["a/x.tsv", "b/x.tsv"]
    assert [task.bytes for task in tasks] == [(tmp_path / "a/x.tsv").stat().st_size] * 2


def test_failing_pipeline_is_one_dataset_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = write_log(tmp_path / "a.tsv", make_lines(3))

    def fail(*_: object) -> None:
        raise OSError("no space left on the device")

    monkeypatch.setattr("embedps.pipelines.ingestion.beam_stages.write_shard", fail)
    with pytest.raises(DatasetError, match=r"pipeline failed: .*no space left on the device"):
        make(log, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["_bad_lines.jsonl"]


def test_command_line_prints_a_summary_then_keeps_it_then_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_log(tmp_path / "logs/a.tsv.gz", [*make_lines(99), b"bad"])
    flags = ("--input", tmp_path / "logs/*", "--output", tmp_path / "out", "--num-shards", "2")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    result = run_cli(*flags, "--runner", "DirectRunner")
    assert result.stderr == ""
    assert "100 rows read = 99 written + 1 bad" in result.stdout
    given = [*map(str, flags)]
    assert command_line.run(criteo.main, given, all_or_nothing=True) == 0
    assert "kept" in capsys.readouterr().out
    assert command_line.run(criteo.main, [*given, "--seed=3"], all_or_nothing=True) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("embedps: --output")
    write_log(tmp_path / "bad.tsv", [b"bad"])
    bad = ("--input", tmp_path / "bad.tsv", "--output", tmp_path / "failed")
    python = python_in(tmp_path / "of a b")
    packages = os.pathsep.join(path for path in sys.path if path)
    failed = run_cli(*bad, *TWO_WORKERS, code=1, python=python, PYTHONPATH=packages)
    assert failed.stderr.count("\n") == 1
    assert os.listdir(temporary) == []


def python_in(folder: Path) -> Path:
    """Makes another path of this Python, of which it then starts others."""
    (folder / "bin").mkdir(parents=True)
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), folder)
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder / "bin" / "python"


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("sig", "beam_flags"),
    [
        (signal.SIGINT, ()),
        (signal.SIGTERM, TWO_WORKERS),
        pytest.param(signal.SIGINT, TWO_WORKERS, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, (), marks=pytest.mark.slow),
    ],
)
def test_interrupt_leaves_nothing_that_looks_finished(
    tmp_path: Path, sig: signal.Signals, beam_flags: tuple[str, ...]
):
    # Small packed, and longer to parse than the signal takes to come.
    log = tmp_path / "a.tsv.gz"
    log.write_bytes(gzip.compress((make_line() + b"\n") * 50_000, 1) * 80)
    command = [sys.executable, "-m", "embedps.pipelines.criteo", "--input", str(log)]
    command += ["--output", str(tmp_path / "out"), *beam_flags]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        while not list(tmp_path.glob("out/_work/run-*.arrow")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(sig)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in stderr
    assert not list((tmp_path / "out").rglob("*"))


@pytest.mark.parametrize(
    ("name", "rows", "positives"),
    [
        ("criteo_kaggle_12768.tsv.gz", 12_768, 3_003),
        ("criteo_terabyte_10000.tsv.gz", 10_000, 265),
    ],
)
def test_real_sample_is_read_whole(
    samples: Path, tmp_path: Path, name: str, rows: int, positives: int
):
    dataset = make(samples / name, tmp_path / "out", num_shards=4)
    assert sum(split.rows for split in dataset.splits.values()) == rows
    assert sum(split.positives for split in dataset.splits.values()) == positives
    assert (dataset.input.lines_read, dataset.input.lines_bad) == (rows, 0)
    with gzip.open(samples / name, "rt") as lines:
        fields = [line.rstrip("\n").split("\t") for line in lines]
    missing = [feature.missing for feature in dataset.numeric]
    missing += [feature.missing for feature in dataset.categorical]
    assert missing == [sum(row[i] == "" for row in fields) for i in range(1, 40)]
    for i, categorical in enumerate(dataset.categorical):
        assert categorical.cardinality == len({row[14 + i] for row in fields} - {""})
    values = np.concatenate(
        [read_split(dataset, split)["I2"].to_numpy() for split in dataset.splits]
    )
    np.testing.assert_allclose(
        np.sort(values), np.sort([numeric_value(row[2]) for row in fields]), rtol=1e-6
    )
