"""Statistics of tables are those of the rows that the chain holds."""

import math

import numpy as np
import pytest

from embedps.checkpoint.tools.stats import read_statistics
from tests.checkpoint.builders import make_run
from tests.commands import checkpoint_command as main

STEP = 300  # of the newest manifest of make_run; a row's frequency is its id
VALUES = [0.0, 1.0, 2.0, 33.0, 40.0, 5.0, 6.0, 7.0]  # of C1, by id


def test_statistics_are_of_the_rows_after_all_deltas(tmp_path):
    directory = make_run(tmp_path / "run").directory
    manifest = directory.latest()
    assert manifest is not None
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
    assert main(["stats", str(directory.path), "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "manifest 3, step 300" in shown
    assert "1.14x" in shown  # 16 of 28 updates are on one of 2 shards
    assert shown.count("too few ids") == 2
    text = page.read_text()
    assert text.count("<h2>") == 2
    assert "<polyline" in text
    assert "<script" not in text
