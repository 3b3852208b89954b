"""Bad input of any declared table: set aside and counted, or one error."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedps.errors import DatasetError, UsageError
from embedps.features.table_schema import Table
from embedps.pipelines.ingestion import input_files
from embedps.pipelines.ingestion.input_files import find_inputs
from embedps.pipelines.ingestion.line_parser import LineParser
from embedps.pipelines.ingestion.lock import locked
from tests.pipelines.builders import make_lines, write_log
from tests.pipelines.shop import NAMES, SHOP, bad_lines, load, make, make_records, write_csv

LABEL = {"name": "y", "as": "label"}
BAD_LINES = (
    ("a,b,c", "must have 9 fields, got 3"),
    ("zz,,1,1,1,s,1,t,1", "user must be a hexadecimal id or empty, got 'zz'"),
    ("1,,2,1,1,s,1,t,1", "bought must be 0 or 1, got '2'"),
    ("1,,,1,1,s,1,t,1", "bought must not be missing"),
    ("1,,1,1e999,1,s,1,t,1", "price must be a finite number, got '1e999'"),
    ("1,,1,nan,1,s,1,t,1", "price must be a number or empty, got 'nan'"),
    ("1,,1,1,1.5,s,1,t,1", "age must be an integer or empty, got '1.5'"),
    ("1,,1,1,1,s,18446744073709551616,t,1", "item must fit in 64 bits"),
    ("1,,1,1,1,s,1,t,-1", "weight must be 0 or more, got '-1'"),
    ("1,,1,1,1,s,1,t,", "weight must not be missing"),
    ('1,"x,1,1,1,s,1,t,1', "the quote at byte 2 must be closed"),
    ("1,,1,1,1,\udcff,1,t,1", "must be UTF-8: invalid start byte at byte 9"),
)


def test_bad_lines_are_set_aside_with_file_line_and_reason(tmp_path: Path):
    path = write_csv(tmp_path / "logs/a.csv", make_records(100))
    lines = path.read_bytes().split(b"\n")[:-1]
    for number, (line, _) in enumerate(BAD_LINES):
        lines.insert(41 + 3 * number, line.encode("utf-8", errors="surrogateescape"))
    write_log(path, lines)
    dataset = make(load(tmp_path), path, tmp_path / "out", max_bad_fraction=0.2)
    records = bad_lines(dataset)
    assert [(each["file"], each["line"]) for each in records] == [
        ("a.csv", 42 + 3 * number) for number in range(len(BAD_LINES))
    ]
    for record, (_, reason) in zip(records, BAD_LINES, strict=True):
        assert reason in record["reason"]
    assert (dataset.input.lines_read, dataset.input.lines_bad) == (112, 12)
    assert sum(split.rows for split in dataset.splits.values()) == 100


def test_bad_rows_of_parquet_are_set_aside_by_number(tmp_path: Path):
    ids = {"name": "c", "as": "categorical", "type": "integer"}
    table = Table.parse(
        {"format": "parquet", "column": [LABEL, {"name": "x", "as": "numeric"}, ids]}
    )
    columns = {
        "y": pa.array([0.0, 1.0, 0.5, None, 1.0, 0.0]),
        "x": pa.array([1.0, math.nan, 1.0, 1.0, math.inf, None]),
        "c": pa.array([1, 2, 3, 4, 5, (1 << 64) - 1], pa.uint64()),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    dataset = make(table, tmp_path / "a.parquet", tmp_path / "out", max_bad_fraction=0.7)
    reasons = {record["line"]: record["reason"] for record in bad_lines(dataset)}
    assert reasons == {
        3: "y must be 0 or 1, got 0.5",
        4: "y must not be missing",
        5: "x must be a finite number, got inf",
        6: "c must be at most 18446744073709551613, as the two above mean missing and rare, "
        "got 18446744073709551615",
    }
    assert (dataset.input.lines_read, dataset.input.lines_bad) == (6, 4)
    cut = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(cut[:-9])
    settings = {"max_bad_fraction": 0.8, "allow_damaged_files": True}
    both = make(table, tmp_path / "*.parquet", tmp_path / "both", **settings)
    assert "the Parquet file is damaged here" in bad_lines(both)[-1]["reason"]
    assert (both.input.lines_read, both.input.lines_bad) == (7, 5)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([LABEL, {"name": "c", "as": "numeric"}], "1 of 1 are"),
        (
            [LABEL | {"name": "c"}, {"name": "y", "as": "categorical", "type": "hex"}],
            "must hold integers, it holds double",
        ),
        (
            [LABEL, {"name": "z", "as": "numeric"}],
            r"^a\.parquet: must have columns z, it has y, c$",
        ),
    ],
)
def test_column_of_another_type_is_one_error(tmp_path: Path, columns: Any, message: str):
    pq.write_table(pa.table({"y": [0.0], "c": ["a"]}), tmp_path / "a.parquet")
    table = Table.parse({"format": "parquet", "column": columns})
    with pytest.raises(DatasetError, match=message):
        make(table, tmp_path / "a.parquet", tmp_path / "o")


def vanish_once_listed(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = input_files.open_input

    def open_late(path: str) -> Any:
        log.unlink(missing_ok=True)
        return opened(path)

    monkeypatch.setattr(input_files, "open_input", open_late)


def test_file_that_vanishes_and_empty_files_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("a", "b", "c"):
        write_csv(tmp_path / f"logs/{name}.csv", make_records(50, seed=ord(name)))
    (tmp_path / "logs/empty.csv").write_bytes(b"")
    (tmp_path / "logs/header.csv").write_text(",".join(NAMES) + "\n")
    vanish_once_listed(tmp_path / "logs/b.csv", monkeypatch)
    dataset = make(load(tmp_path), tmp_path / "logs/*", tmp_path / "out", allow_damaged_files=True)
    assert [(r["file"], r["line"], r["reason"]) for r in bad_lines(dataset)] == [
        ("b.csv", 0, "the file vanished after it was listed"),
        ("empty.csv", 0, "the file has no rows"),
        ("header.csv", 0, "the file has no rows"),
    ]
    assert [file.lines for file in dataset.input.files] == [50, 0, 50, 0, 0]
    assert sum(split.rows for split in dataset.splits.values()) == 100


def _damaged(packing: str, folder: Path) -> Table:
    """Files of 3000 rows, packed somehow: cut in the middle, with wrong bytes there, and empty."""
    table, path = Table.load("criteo"), folder / f"cut.tsv.{packing}"
    if packing == "parquet":
        folder.mkdir()
        columns = [LABEL, {"name": "x", "as": "numeric"}]
        table = Table.parse({"format": "parquet", "column": columns})
        rows = pa.table({"y": [0.0, 1.0] * 1500, "x": [i * 1.5 for i in range(3000)]})
        pq.write_table(rows, path, row_group_size=1000, write_page_checksum=True)
    else:
        write_log(path, make_lines(3000))
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(data[:middle])
    path.with_stem("damaged.tsv").write_bytes(data[:middle] + b"\xff" * 64 + data[middle + 64 :])
    path.with_stem("emptied.tsv").write_bytes(b"")
    return table


@pytest.mark.parametrize("packing", ["gz", "zst", "parquet"])
def test_damaged_files_fail_the_job_unless_they_are_allowed(tmp_path: Path, packing: str):
    table, logs, out = _damaged(packing, tmp_path / "logs"), tmp_path / "logs/*", tmp_path / "out"
    message = (
        r"3 of 3 input files are cut, damaged or gone, and how many rows are lost is not known"
    )
    with pytest.raises(DatasetError, match=message) as caught:
        make(table, logs, out, max_bad_fraction=1.0)
    said = str(caught.value)
    assert "--allow-damaged-files" in said
    assert os.listdir(out) == ["_bad_lines.jsonl"]
    settings = {"max_bad_fraction": 1.0, "allow_damaged_files": True}
    rows = dict.fromkeys(("cut", "damaged", "emptied"), 0)
    # A batch of Parquet is read whole or not, and a cut Parquet has no footer.
    if packing == "parquet":
        with pytest.raises(DatasetError, match="no line is a good row"):
            make(table, logs, out, **settings)
    else:
        dataset = make(table, logs, out, **settings)
        for file in dataset.input.files:
            rows[file.path.partition(".")[0]] = file.lines - file.lines_bad
        assert sum(rows.values()) == sum(split.rows for split in dataset.splits.values())
        assert 0 < rows["cut"] < 3000
        assert 0 < rows["damaged"] < 3000
        (record,) = (each for each in bad_lines(dataset) if each["file"].startswith("cut"))
        assert "stream ends early: the file is cut off here" in record["reason"]
        assert record["line"] == rows["cut"] + 1
    for name, count in rows.items():
        assert f"{name}.tsv.{packing} after {count:,} good rows" in said


def test_file_that_vanishes_fails_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = write_log(tmp_path / "logs/a.tsv", make_lines(30))
    write_log(tmp_path / "logs/b.tsv", make_lines(30))
    vanish_once_listed(log, monkeypatch)
    with pytest.raises(DatasetError, match=r"a\.tsv after 0 good rows \(the file vanished"):
        make(Table.load("criteo"), tmp_path / "logs/*", tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("directory", r"/b\.tsv: must have a file, there is none that is not hidden"),
        ("pipe", r"must match regular files .*/b\.tsv is a pipe or a device"),
    ],
)
@pytest.mark.parametrize("flag", ["--input", "--eval-input"])
def test_match_that_is_no_file_is_one_error(tmp_path: Path, kind: str, message: str, flag: str):
    good = write_log(tmp_path / "logs/a.tsv", make_lines(30))
    other = tmp_path / "logs/b.tsv"
    other.mkdir() if kind == "directory" else os.mkfifo(other)
    patterns = {"--input": [str(good)], flag: [str(other)]}
    with pytest.raises(UsageError, match=f"{flag} .*{message}"):
        find_inputs(patterns["--input"], patterns.get("--eval-input", ()))


def test_name_that_is_not_utf8_is_one_error(tmp_path: Path):
    write_log(tmp_path / "logs/a.tsv", make_lines(30))
    (tmp_path / "logs/a.tsv").rename(os.fsdecode(os.fsencode(tmp_path) + b"/logs/\xff.tsv"))
    for pattern in ("logs", "logs/*"):
        with pytest.raises(UsageError, match="file's name must be text of Unicode"):
            find_inputs([str(tmp_path / pattern)])


def test_folder_is_passed_over_by_a_pattern(tmp_path: Path):
    good = write_log(tmp_path / "logs/a.tsv", make_lines(30))
    write_log(tmp_path / "logs/more/b.tsv", make_lines(30))
    (task,) = find_inputs([str(tmp_path / "logs/*")])
    assert (task.path, task.bytes) == (str(good), good.stat().st_size)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_one_error(tmp_path: Path):
    log = write_log(tmp_path / "a.tsv", make_lines(3))
    log.chmod(0)
    with pytest.raises(UsageError, match="give it read permission"):
        find_inputs([str(log)])


def test_too_many_bad_lines_fail_with_a_summary_and_no_dataset(tmp_path: Path):
    write_log(tmp_path / "logs/a.tsv", [*make_lines(90), *[b"bad"] * 10])
    write_log(tmp_path / "logs/b.tsv", make_lines(100))
    table = Table.load("criteo")
    with pytest.raises(DatasetError) as caught:
        make(table, tmp_path / "logs/*", tmp_path / "out", max_bad_fraction=0.049)
    assert "at most 4.900% of the lines may be bad" in str(caught.value)
    assert "10 of 200 are (a.tsv: 10 of 100)" in str(caught.value)
    assert os.listdir(tmp_path / "out") == ["_bad_lines.jsonl"]
    assert len(bad_lines(tmp_path / "out")) == 10
    dataset = make(table, tmp_path / "logs/*", tmp_path / "out", max_bad_fraction=0.05)
    assert sum(split.rows for split in dataset.splits.values()) == 190


def test_rows_that_do_not_add_up_fail_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = write_log(tmp_path / "a.tsv", make_lines(40))
    parse = LineParser.parse
    monkeypatch.setattr(
        LineParser, "parse", lambda self, block: (parse(self, block)[0].slice(1), [])
    )
    with pytest.raises(DatasetError, match="40 were read, 39 written and 0 set aside"):
        make(Table.load("criteo"), log, tmp_path / "out", eval_fraction=0.0)
    assert not (tmp_path / "out/_dataset.json").exists()


def test_header_that_lacks_a_column_is_one_error(tmp_path: Path):
    write_csv(tmp_path / "a.csv", [])
    table = load(
        tmp_path, SHOP.replace("column = [", 'column = [{ name = "nope", as = "numeric" },')
    )
    with pytest.raises(DatasetError, match=r"^a\.csv: its first line must name.*'nope' is absent"):
        make(table, tmp_path / "a.csv", tmp_path / "out")


def test_columns_that_no_declaration_names_are_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in ("a", "b"):
        lines = [",note,y,c", *(f"{i},hello,{i % 2},{i}" for i in range(9))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    ids = {"name": "c", "as": "categorical", "type": "integer"}
    make(Table.parse({"column": [LABEL, ids]}), tmp_path / "*.csv", tmp_path / "out")
    told = "the input has columns that the schema does not declare; they are not read: '', 'note'\n"
    assert capsys.readouterr().err.count(told) == 1


def test_second_run_on_a_directory_is_refused_while_the_first_holds_it(tmp_path: Path):
    log = write_log(tmp_path / "a.tsv", make_lines(30))
    output = tmp_path / "out"
    output.mkdir()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            make(Table.load("criteo"), log, output)
        except UsageError as error:
            failures.append(error)

    with locked(output):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    (failure,) = failures
    assert f"is being written by process {os.getpid()} on " in str(failure)
    assert os.listdir(output) == []
    # A lock file that a killed run left is no lock.
    (output / "_lock").write_text("process 1 on elsewhere")
    make(Table.load("criteo"), log, output)
    assert "_lock" not in os.listdir(output)
