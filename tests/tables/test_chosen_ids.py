"""Rows of ids that are chosen against the public hash take the memory of random ids."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.hostile import ids
from embedps.tables import SizeLimit
from tests.tables.builders import group_files, look, make_collection, make_table

NUM_ROWS = 5000
LIMIT = 16 << 20
# With 40 shared bits, only 24 are left to differ.
CHOSEN = ids.colliding("t", NUM_ROWS, shared_bits=40)


def load(folder, chosen: np.ndarray, **fields):
    """Writes a base of these ids, and loads it into a collection of its own."""
    writer = make_collection([make_table()])
    look(writer, {"t": tf.constant(chosen)}, insert=True)
    files = group_files(writer.files.write("base", str(folder), since={}))
    reader = make_collection([make_table(**fields)])
    assert reader.files.load(files) == NUM_ROWS
    return reader


def test_a_base_of_chosen_ids_takes_the_memory_of_random_ids(tmp_path):
    chosen, random = (
        load(tmp_path / name, of).stats()
        for name, of in (("chosen", CHOSEN), ("random", ids.random(NUM_ROWS)))
    )
    assert chosen.rows == random.rows == {"t": NUM_ROWS}
    assert chosen.table_bytes["t"] <= 1.3 * random.table_bytes["t"]
    assert chosen.memory_bytes <= 1.3 * random.memory_bytes


@pytest.mark.parametrize("of", [CHOSEN, ids.random(NUM_ROWS)], ids=["chosen", "random"])
def test_chosen_ids_stay_below_a_limit_of_bytes(tmp_path, of):
    reader = load(tmp_path, of, eviction=(SizeLimit(max_bytes=LIMIT),))
    assert reader.stats().table_bytes["t"] <= LIMIT
    assert reader.stats().rows == {"t": NUM_ROWS}
