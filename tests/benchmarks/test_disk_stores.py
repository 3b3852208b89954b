"""The stores that the benchmark compares have rows on disk, and read what was written."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import disk_stores
from benchmarks.tier_peers import disk_bytes, expected_sums

ROWS, MAX_BYTES = 300_000, 16 << 20
STORES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(why is not None, reason=str(why)),
    )
    for name in disk_stores.STORES
    for why in (disk_stores.why_not(name),)
]


@pytest.mark.multiprocess
@pytest.mark.parametrize("store", STORES)
def test_rows_are_those_that_were_written(store: str, tmp_path: Path) -> None:
    # In a process of its own: it enters a control group, and stays there.
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.test_disk_stores", store, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if store == "mapped file":
        disk_stores.remove_groups()
    assert done.returncode == 0, done.stderr[-2000:]


def _check(store: str, folder: str) -> None:
    rows = disk_stores.STORES[store](folder, MAX_BYTES)
    rows.fill(ROWS)
    read, _ = disk_bytes()
    rng, counts = np.random.default_rng(0), np.zeros(ROWS, np.float32)
    for _ in range(12):
        keys = np.unique(rng.integers(0, ROWS, 30_000))
        expected = np.repeat(-disk_stores.RATE * counts[keys, None], disk_stores.DIM, axis=1)
        np.testing.assert_array_equal(rows.step(keys), expected)
        counts[keys] += 1
    assert disk_bytes()[0] > read + (4 << 20)  # not all rows fit the memory


def test_sums_are_those_of_rows_that_each_step_lowers() -> None:
    steps = [[0, 2], [2], [1, 2], [0, 1, 2]]
    keys = np.array([key for step in steps for key in step])
    starts = np.cumsum([0, *map(len, steps)])
    # Before each step its rows were in 0 and 0; 1; 0 and 2; 1, 1 and 3 others.
    per_row = -disk_stores.RATE * disk_stores.DIM
    assert expected_sums(keys, starts, 3, 2) == [per_row * 1, per_row * 7]


def test_a_store_without_its_package_is_skipped_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert disk_stores.why_not("RocksDB") == "needs the package rocksdict"
    monkeypatch.setattr(disk_stores, "_CGROUPS", tmp_path / "none")
    assert "needs a control group that limits memory" in str(disk_stores.why_not("mapped file"))
    assert disk_stores.why_not("ours") is None


if __name__ == "__main__":
    _check(*sys.argv[1:])
