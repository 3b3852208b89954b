"""Compaction, export, import and diff of a chain hold what they work on, not the table."""

import json

import pytest

from tests import commands

# What is worked on at a time is reached by 300,000 rows or so: fewer than that hold less.
SIZES = (450_000, 900_000)  # 126 MB and 252 MB of rows


def run(*arguments: str) -> str:
    program = ("-m", "tests.checkpoint.memory_program", *arguments)
    return commands.run(*program).stdout


@pytest.mark.slow
@pytest.mark.multiprocess
def test_memory_does_not_grow_with_the_table(tmp_path):
    for size in SIZES:
        run("make", str(tmp_path / str(size)), str(size))
    for what in ("diff", "export", "import", "compact"):
        small, large = (
            json.loads(run(what, str(tmp_path / str(size))).splitlines()[-1]) for size in SIZES
        )
        assert (small["code"], large["code"]) == (0, 0)
        grown = large["bytes"] - small["bytes"]
        # 450,000 rows more are 126 MB; a byte each is what is held of them.
        assert grown < 25e6, (what, small, large)
