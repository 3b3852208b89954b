"""A small copy of a tier has the rows and misses of the tier."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from embedps.checkpoint.format.row_hashes import row_hashes
from embedps.planning.step_sample import StepSample
from embedps.planning.tier_cache import TableMemory, TierCache, simulate_tier
from embedps.planning.tier_hits import chunk_of, least_memory
from embedps.tables import FeatureSpec, TableSpec
from embedps.tables.byte_limits import STRIPES
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.tiered import Tiered

TABLE = TableSpec(name="row", embedding_dim=48)
STEP, STEPS = 600, 96


def steps_of(exponent: float, most: int) -> list[np.ndarray]:
    """Steps whose ids come again, some often; fewer with a larger exponent."""
    rng = np.random.default_rng(5)
    return [np.unique((most * rng.random(STEP) ** exponent).astype(np.int64)) for _ in range(STEPS)]


def run_tier(directory: Path, steps: list[np.ndarray], memory_bytes: int) -> tuple[int, int]:
    """Trains two epochs with a tier; gives the rows in memory, and what the second one read."""
    collection = EmbeddingCollection(
        [TABLE],
        [FeatureSpec(name="ids", table="row")],
        devices=["/device:CPU:0"],
        container=f"tier-cache-{memory_bytes}",
        memory=Tiered(max_memory_bytes=memory_bytes, directory=str(directory)),
    )
    try:
        read = [0]
        for epoch in range(2):
            for k, ids in enumerate(steps):
                found = collection.lookup({"ids": tf.constant(ids)}, insert=True)
                gradients = tf.nest.map_structure(tf.ones_like, found.rows)
                step = tf.constant(epoch * STEPS + k, tf.int64)
                collection.update(found, gradients, learning_rate=tf.constant(0.1), step=step)
            read.append(collection.tier_stats().read)
        on_disk = sum(collection.tier_stats().rows_on_disk.values())
        return sum(collection.stats().rows.values()) - on_disk, read[2] - read[1]
    finally:
        collection.drop()


@pytest.mark.parametrize("most_ids", [1 << 20, 20_000])
@pytest.mark.parametrize(("exponent", "percent"), [(3.0, 50), (3.0, 25), (3.0, 5), (1.5, 40)])
def test_rows_and_misses_are_those_of_a_tier(exponent, percent, most_ids, tmp_path):
    steps = steps_of(exponent, 40_000)
    rows = len(np.unique(np.concatenate(steps)))
    slots, size = chunk_of(TABLE)
    least = STRIPES * size
    room = max(rows * size // slots * percent // 100, least)
    # What is there besides the floats of a tenth of the rows, and two chunks of each stripe.
    others = least_memory(TABLE, rows) - 2 * least - rows // 10 * size // slots
    in_memory, read = run_tier(tmp_path, steps, others + room)
    sample = StepSample(["row"], unit_steps=STEPS, most_ids=most_ids)
    for ids in steps:
        sample.add({"row": row_hashes("row", ids)})
    memory = TableMemory(least_slots=STRIPES * slots, slot_bytes=size / slots)
    found, missed, again = simulate_tier(sample, [memory], room, shuffles=False)
    np.testing.assert_allclose(found[0], in_memory, rtol=0.1)
    np.testing.assert_allclose(missed[0] * STEPS, read, rtol=0.12)
    assert (again[0] > 0.1 * missed[0]) == (percent == 5)  # a step is large for so few rows


def test_memory_goes_to_the_table_whose_rows_come_back_too_soon():
    once = TableMemory(least_slots=64, slot_bytes=100.0)
    cache = TierCache([once, once], room_bytes=1024 * 100.0)
    again = np.arange(1 << 40, (1 << 40) + 900)
    for k in range(200):
        new = np.arange(50 * k, 50 * k + 50)
        cache.take_step([new.tolist(), again[(90 * k + np.arange(90)) % 900].tolist()])
    rows = cache.rows
    assert rows.sum() <= 1024
    assert rows[1] > 800
    assert cache.misses[0] == 0  # a new row is no miss


def test_a_table_without_room_keeps_one_row():
    cache = TierCache([TableMemory(least_slots=0.1, slot_bytes=1.0)], room_bytes=0.0)
    for _ in range(3):
        cache.take_step([[1, 2, 3]])
    assert cache.rows.tolist() == [1.0]
    assert cache.misses[0] >= 3
