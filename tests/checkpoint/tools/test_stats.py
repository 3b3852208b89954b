"""Statistics of tables are those of the rows that the chain holds."""

import json
import math
from typing import Any

import numpy as np
import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import SaveSet
from embedps.checkpoint.format.row_hashes import row_hashes, shards_of
from embedps.checkpoint.format.rows import RowFile
from embedps.checkpoint.tools.run_statistics import STATISTICS_NAME, read_run_statistics
from embedps.checkpoint.tools.stats import read_statistics
from tests.checkpoint.builders import Record, make_manifest, make_run, write_rows
from tests.checkpoint.readers import newest_of
from tests.commands import checkpoint_command as main

STEP = 300  # of the newest manifest of make_run; a row's frequency is its id
VALUES = [0.0, 1.0, 2.0, 33.0, 40.0, 5.0, 6.0, 7.0]  # of C1, by id


def test_statistics_are_of_the_rows_after_all_deltas(tmp_path):
    directory = make_run(tmp_path / "run").directory
    manifest = newest_of(directory)
    found = read_statistics(directory, manifest)
    first, second = found.tables
    assert (found.number, found.step) == (3, STEP)
    assert (first.name, first.rows, first.updates) == ("C1", 8, sum(range(8)))
    assert first.ids_per_step == pytest.approx(sum(range(8)) / STEP)
    assert first.hottest == [(i, i) for i in range(7, -1, -1)]
    assert first.hot_share == pytest.approx(7 / sum(range(8)))
    assert first.once == 2
    assert first.row_bytes == 4 * 3 + 16
    assert [(s.shard, s.rows, s.updates) for s in first.shards] == [(0, 4, 12), (1, 4, 16)]
    assert first.norms[2] == pytest.approx(np.median(VALUES) * math.sqrt(2))
    assert first.largest_norm == pytest.approx(40 * math.sqrt(2))
    assert (second.rows, second.updates, second.hottest) == (1, 6, [(6, 6)])


def test_the_command_prints_and_writes_a_page(tmp_path, capsys):
    directory = make_run(tmp_path / "run").directory
    page = tmp_path / "page.html"
    assert main(["stats", str(directory.path), "--details", "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "manifest 3, step 300" in shown
    assert "1.14x" in shown  # 16 of 28 updates are on one of 2 shards
    assert shown.count("too few ids") == 2
    text = page.read_text()
    assert text.count("<h2>") == 2
    assert "<polyline" in text
    assert "<script" not in text


def test_a_line_per_table_is_whole_in_a_pipe(tmp_path, capsys):
    directory = make_run(tmp_path / "run").directory
    assert main(["stats", str(directory.path)]) == 0
    shown = capsys.readouterr().out
    assert sum(line.startswith(("│ C1", "│ C2")) for line in shown.splitlines()) == 2
    assert "too few ids" not in shown
    assert "fingerprint(text)" in shown
    assert "--details" in shown
    assert "…" not in shown


def test_all_tables_are_read_in_one_pass(tmp_path, monkeypatch):
    directory = make_run(tmp_path / "run").directory
    manifest = newest_of(directory)
    reads = []
    batches = RowFile.batches

    def counted(file):
        reads.append(file.path)
        return batches(file)

    monkeypatch.setattr(RowFile, "batches", counted)
    read_statistics(directory, manifest)
    files = len(set(reads))
    assert len(manifest.tables) == 2
    assert len(reads) == 3 * files  # their numbers, their last records, their rows


def write_base(directory, ids_of_tables, num_shards: int) -> None:
    """Commits a base whose rows are on the shards that their hashes name."""
    of_shards: list[list[Record]] = [[] for _ in range(num_shards)]
    for table, ids in ids_of_tables.items():
        for i, shard in zip(ids, shards_of(row_hashes(table, ids), num_shards), strict=True):
            of_shards[shard].append(Record(table, int(i)))
    files = [
        write_rows(directory, "base", 1, records, shard, num_shards)
        for shard, records in enumerate(of_shards)
    ]
    base = SaveSet(kind="base", number=1, step=100, since=None, files=tuple(files))
    directory.commit(make_manifest(1, [base]))


@pytest.mark.parametrize("others", [0, 300])
def test_a_shard_whose_ids_were_chosen_is_named_in_one_line(tmp_path, capsys, others):
    num_shards, chosen_shard = 8, 3
    drawn = np.random.default_rng(0).integers(-(1 << 63), 1 << 63, 4000, dtype=np.int64)
    of = shards_of(row_hashes("C1", drawn), num_shards)
    ids = np.concatenate([drawn[of == chosen_shard][:300], drawn[of != chosen_shard][:others]])
    share = 300 / len(ids)
    directory = CheckpointDirectory(tmp_path / "run")
    write_base(directory, {"C1": ids, "C2": drawn[:500]}, num_shards)
    page = tmp_path / "page.html"
    assert main(["stats", str(directory.path), "--details", "--html", str(page)]) == 0
    line = (
        f"table 'C1': shard 3 of 8 has {share:.0%} of the rows ({8 * share:.1f} times an even "
        "share): ids may be chosen for it; see Ids in docs/security.md"
    )
    shown = capsys.readouterr().out
    assert [each for each in shown.splitlines() if "chosen" in each] == [line]
    assert page.read_text().count("may be chosen") == 1
    if not others:
        assert "8.00x" in shown  # the fullest shard; the others have no rows


def test_a_shards_number_in_a_files_name_takes_no_memory(tmp_path):
    directory = CheckpointDirectory(tmp_path / "run")
    file = write_rows(directory, "base", 1, [Record("C1", 5)] * 3, 0, 999_999_999)
    base = SaveSet(kind="base", number=1, step=100, since=None, files=(file,))
    directory.commit(make_manifest(1, [base]))
    manifest = newest_of(directory)
    assert read_statistics(directory, manifest).tables[0].num_shards == 999_999_999


STATISTICS: dict[str, Any] = {
    "step": 300,
    "observed_secs": 120.0,
    "tables": {
        "C1": {
            "rows_per_hour": 1234.5,
            "bytes_per_hour": None,
            "admitted": 8,
            "refused": 21,
            "evicted": {"age": 30, "limit": 5},
            "lookups": 4321,
            "ids_per_step": 14.4,
        }
    },
    "servers": [
        {
            "rows": 9,
            "memory_bytes": 1 << 20,
            "resident_bytes": 1 << 30,
            "lookups_per_sec": 77.0,
            "load": 1.0,
        }
    ],
    "forecasts": [
        {"subject": "table 'C1'", "limit": "max_rows", "size": 10000, "hours": 8.1},
        {"subject": "table 'C1'", "limit": "max_bytes", "size": 1, "hours": 0.0},
        {"subject": "parameter server 0", "limit": "memory", "size": 10, "hours": None},
    ],
}


def test_what_the_run_last_saw_is_shown_too(tmp_path, capsys):
    directory = make_run(tmp_path / "run").directory
    (directory.path / STATISTICS_NAME).write_text(json.dumps(STATISTICS))
    page = tmp_path / "page.html"
    assert main(["stats", str(directory.path), "--details", "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    for text in ("1,234", "35", "4,321", "1.0 GiB", "table 'C1', max_rows 10,000: 8.1 hours"):
        assert text in shown
    assert shown.index("max_bytes 1: reached") < shown.index("8.1 hours")
    assert "memory 10" not in shown
    assert "8.1 hours" in page.read_text()
    assert main(["stats", str(directory.path), "--number", "3"]) == 0
    assert "while it trained" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "memory", "secs", "shown"),
    [
        (10.0, -4.6e6, 120.0, ["10", "0 B"]),  # spare memory was given back
        (-10.0, -4.0 * (1 << 20), 120.0, ["-10", "-4.0 MiB"]),
        (10.0, 2.0 * (1 << 20), 120.0, ["10", "2.0 MiB"]),
        (10.0, 2.0 * (1 << 20), 2.0, ["?", "?"]),
        (None, None, 120.0, ["?", "?"]),
    ],
)
def test_growth_has_one_unit_and_is_told_after_a_minute(tmp_path, rows, memory, secs, shown):
    table = {**STATISTICS["tables"]["C1"], "rows_per_hour": rows, "bytes_per_hour": memory}
    content = {**STATISTICS, "observed_secs": secs, "tables": {"C1": table}}
    (tmp_path / STATISTICS_NAME).write_text(json.dumps(content))
    found = read_run_statistics(tmp_path)
    assert found is not None
    assert list(found.tables[0][1:3]) == shown


def test_a_run_that_has_ended_has_no_forecast(tmp_path):
    (tmp_path / STATISTICS_NAME).write_text(json.dumps(STATISTICS))
    found, ended = (read_run_statistics(tmp_path, has_ended=over) for over in (False, True))
    assert found is not None
    assert ended is not None
    assert len(found.forecasts) == 2
    assert ended.forecasts == []


@pytest.mark.parametrize("content", ["", "[]", '{"step": 3}', '{"step": 3, "tables": {"a": 1}}'])
def test_statistics_that_are_not_whole_are_left_out(tmp_path, content):
    (tmp_path / STATISTICS_NAME).write_text(content)
    assert read_run_statistics(tmp_path) is None
    assert read_run_statistics(tmp_path / "absent") is None
