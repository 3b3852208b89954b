"""Rows that are put into arrays on a disk are those that are put into arrays in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedps.errors import UsageError
from embedps.serving.placed_rows import MAX_PARTS, Layout, OnDisk, PlacedRows, place_rows
from embedps.tables.tiered import Tiered
from tests.serving.builders import bytes_on_disk

LAYOUTS = [
    Layout(places=10_001, of_row={"rows": (np.float32, (3,))}),
    Layout(
        places=77,
        of_row={
            "codes": (np.uint8, (5,)),
            "scales": (np.float32, (2,)),
            "updates": (np.float32, ()),
        },
    ),
]


def fill(placed: PlacedRows, layout: Layout, seed: int) -> None:
    """Puts rows at some places, many of them more than once."""
    rng = np.random.default_rng(seed)
    for count in (0, 1, 30, layout.places // 2):
        places = rng.integers(0, layout.places, count)
        rows: dict[str, Any] = {
            name: rng.integers(0, 250, (count, *shape)).astype(dtype)
            for name, (dtype, shape) in layout.of_row.items()
        }
        placed.put(places, rows)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("part_places", [1, 7, 64, 20_000])
def test_the_disk_gives_the_arrays_of_the_memory(
    tmp_path: Path, layout: Layout, part_places: int
) -> None:
    if layout.places // part_places > MAX_PARTS:
        part_places = 40
    (want,) = place_rows([layout], None, ids_bytes=0)
    found = OnDisk(layout, tmp_path, part_places=part_places)
    for placed in (want, found):
        fill(placed, layout, seed=part_places)
    arrays = found.arrays()
    assert bytes_on_disk(tmp_path) == layout.num_bytes
    assert arrays.keys() == layout.of_row.keys()
    for name, array in want.arrays().items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
        assert arrays[name].ctypes.data % 64 == 0
    assert os.listdir(tmp_path) == []
    del arrays
    assert bytes_on_disk(tmp_path) == 0


def test_rows_go_to_the_disk_only_if_they_must(tmp_path: Path) -> None:
    total = 100 + sum(layout.num_bytes for layout in LAYOUTS)
    for limit, on_disk in ((total, False), (total - 1, True)):
        memory = Tiered(max_memory_bytes=limit, directory=str(tmp_path / "made"))
        placed = place_rows(LAYOUTS, memory, ids_bytes=100)
        assert [isinstance(each, OnDisk) for each in placed] == [on_disk] * 2


def test_a_limit_below_the_ids_says_what_is_least(tmp_path: Path) -> None:
    least = 100 + -(-10_001 // MAX_PARTS) * 12

    def place(limit: int, directory: Path = tmp_path) -> list[PlacedRows]:
        memory = Tiered(max_memory_bytes=limit, directory=str(directory))
        return place_rows(LAYOUTS, memory, ids_bytes=100)

    with pytest.raises(UsageError, match=rf"must be at least {least} .* but is {least - 1}$"):
        place(least - 1)
    placed = place(least)
    fill(placed[0], LAYOUTS[0], seed=1)
    assert placed[0].arrays()["rows"].any()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"spill_dir .*file: cannot make a file: "):
        place(least, tmp_path / "file")
