"""Random traces of a table with all policies, against a plain-Python twin, row for row.

A trace has one of the optimizers, and policies of all kinds; in many, the coldest rows are on disk.
It mixes training steps, repeated ones too, lookups, ticks of both clocks, sweeps, removals,
evictions by the store, by the tool and at limits of the table and of the server, cuts that are
committed or not, files of evicted rows, bases beside the chain, compactions, restores onto other
numbers of shards with other policies and dtypes, and kills at any step on the disk. Every read
value, every record of every file in its order, and every count must be the twin's.
"""

import json
import os

import pytest

from tests.commands import run_program

# Who changes the tables asks for ten.
THOUSANDS = int(os.environ.get("EMBEDPS_TRACES_THOUSANDS", "1"))
DOES = {
    "train": 4,
    "repeat": 0.2,
    "touch": 0.4,
    "score": 0.4,
    "tick": 1,
    "sweep": 0.8,
    "remove": 0.4,
    "evict": 0.4,
    "evict_by_tool": 0.2,
    "save": 1.2,
    "copy": 0.2,
    "compact": 0.2,
    "restore": 0.4,
    "clear": 0.1,
    "killed": 0.04,
    "evicted": 0.4,  # rows in files of evicted rows
    "at_server_limit": 0.05,  # servers that gave a table no more memory
    "counting_at_server_limit": 0.004,  # the same, and the table counts
    "tiered": 0.5,  # stores of servers whose coldest rows are on disk
    "spilled": 20,  # rows
    "brought_back": 15,
    "disk_reads": 2,  # of rows that had left the buffers of the log
    "sgd": 0.2,
    "adagrad": 0.1,
    "rowwise_adagrad": 0.1,
    "lazy_adam": 0.1,
    "ftrl": 0.1,
}


def run_traces(first: int, num_traces: int) -> None:
    program = ("-m", "tests.tables.oracle_program", str(first), str(num_traces))
    found = json.loads(run_program(*program, timeout_secs=560).splitlines()[-1])
    assert found["traces"] == num_traces
    rare = {name: found["did"].get(name, 0) for name, each in DOES.items()}
    assert all(rare[name] >= each * num_traces for name, each in DOES.items()), rare


@pytest.mark.multiprocess
def test_some_traces_agree_with_the_twin():
    run_traces(0, 80)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("first", range(80, 80 + THOUSANDS * 1000, 500))
def test_thousands_of_traces_agree_with_the_twin(first):
    run_traces(first, 500)
