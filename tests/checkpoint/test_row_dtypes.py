"""Chains whose saves hold rows of several dtypes: every reader takes them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from embedps.checkpoint import Rows, follow
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.format.quantize import Encoding, from_bfloat16, to_nearest
from embedps.checkpoint.format.rows import RowFile
from embedps.checkpoint.tools.compact import compact
from embedps.checkpoint.tools.diff import diff
from embedps.checkpoint.tools.evict import Selection, evict
from embedps.checkpoint.tools.stats import read_statistics
from embedps.checkpoint.tools.verify import verify
from embedps.engine.checkpoint_restore import dtype_changes, load_rows
from embedps.tables import Adagrad, TableSpec
from embedps.training.checkpoint_writer import CheckpointWriter
from tests.checkpoint import store_chain
from tests.checkpoint.readers import newest_of, read_table
from tests.kernels.twins import round_to
from tests.tables.builders import ids, make_collection, make_table, rows_of, train

STORED = Path(__file__).parent / "stored" / "manifest-2" / "float32"
NAMES = ("a", "b")


def declare(rows: str, slots: str) -> list[TableSpec]:
    """Table `b` stays float32, so a change moves `a` to another group."""
    changing = make_table("a", 3, optimizer=Adagrad(), row_dtype=rows, slot_dtype=slots)
    return [changing, make_table("b", 3, optimizer=Adagrad())]


class Run:
    """Trains tables and saves them, each part of a run with its own declaration."""

    def __init__(self, path: Path, tables: list[TableSpec], num_shards: int) -> None:
        self.directory = CheckpointDirectory(path)
        self.collection = make_collection(tables, num_shards=num_shards)
        self.writer = CheckpointWriter(self.directory, self.collection, {})
        last = self.directory.latest()
        self.changes = dtype_changes(last, self.collection) if last is not None else []
        if last is not None:
            self.writer.restore(last)

    def step(self, step: int, used: range) -> Manifest:
        gradients = np.random.default_rng(step).standard_normal((len(used), 3))
        upstream = dict.fromkeys(NAMES, gradients.astype(np.float32))
        train(self.collection, dict.fromkeys(NAMES, ids(*used)), upstream, step=step)
        self.writer.save(step=step, ledger={}, partially_applied=dict, progress={}, final=False)
        return newest_of(self.directory)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("float32", "float32"), ("bfloat16", "bfloat16")),
        (("bfloat16", "float32"), ("float16", "bfloat16")),
        (("float16", "bfloat16"), ("float32", "float32")),
    ],
)
def test_run_resumes_with_other_dtypes_and_tools_read_the_chain(before, after, tmp_path):
    path = tmp_path / "model"
    first = Run(path, declare(*before), 2)
    first.step(1, range(40))
    old = first.step(2, range(20))
    held = rows_of(first.collection, tmp_path / "held")
    resumed = Run(path, declare(*after), 3)
    fields = zip(("row_dtype", "slot_dtype"), before, after, strict=True)
    assert resumed.changes == [
        f"table 'a': {field} is {now}, the checkpoint has {then}: the restored rows are rounded "
        "to it"
        for field, then, now in fields
        if then != now
    ]
    for key, row in rows_of(resumed.collection, tmp_path / "restored").items():
        rows, slots = after if key[0] == "a" else ("float32", "float32")
        same = np.array(held[key].embedding, np.float32)
        np.testing.assert_array_equal(row.embedding, round_to(rows, same))
        sums = np.array(held[key].slots[0], np.float32)
        np.testing.assert_array_equal(row.slots[0], round_to(slots, sums))

    new = resumed.step(3, range(10, 50))
    directory = resumed.directory
    assert not verify(directory, directory.numbers()).problems
    encodings = {RowFile(directory.file(f)).encoding for s in new.chain for f in s.files}
    ours = {Encoding(rows=r, optimizer_slots=s) for r, s in (before, after)}
    assert encodings == ours | {Encoding()}
    table = read_table(directory, new, "a")
    lasting = {row["id"]: row["embedding"] for row in table.to_pylist()}
    assert lasting.keys() == set(range(50))
    assert all(lasting[i] == list(held["a", i].embedding) for i in range(10))  # not yet rewritten
    memory = rows_of(resumed.collection, tmp_path / "memory")
    assert all(lasting[i] == list(memory["a", i].embedding) for i in range(10, 50))
    changed = [b for b in diff(directory, directory.read(old.number), new) if b.num_rows]
    assert sum(b.num_rows for b in changed) == 2 * 40
    followed = [c.batch for c in follow(path, idle_secs=0) if isinstance(c, Rows)]
    assert sum(b.num_rows for b in followed) == sum(s.rows for s in new.chain)
    (of_a, of_b) = read_statistics(directory, new).tables
    floats = {"float32": 12, "bfloat16": 8, "float16": 8}  # three values, to a multiple of 4 bytes
    assert of_a.row_bytes == 16 + floats[after[0]] + floats[after[1]]
    assert (of_b.row_bytes, of_b.rows) == (16 + 12 + 12, 50)

    assert compact(directory) is not None
    again = newest_of(directory)
    assert read_table(directory, again, "a").equals(table)
    gone = evict(directory, "a", Selection(below_norm=float(np.median(_norms(lasting)))))
    assert gone.removed == 25
    assert not verify(directory, directory.numbers()).problems
    assert len(rows_of(Run(path, declare(*after), 1).collection, tmp_path / "last")) == 75


def _norms(rows: dict[int, list[float]]) -> np.ndarray:
    return np.linalg.norm(np.array(list(rows.values()), np.float64), axis=1)


@pytest.mark.parametrize("rows", ["bfloat16", "float16"])
def test_stored_chain_of_float32_is_restored_into_rows_of_another_dtype(rows, tmp_path):
    directory = CheckpointDirectory(STORED)
    newest = newest_of(directory)
    tables = [
        dataclasses.replace(t, row_dtype=rows, slot_dtype="bfloat16") for t in store_chain.TABLES
    ]
    collection = make_collection(tables, num_shards=3)
    load_rows(collection, directory, newest.chain)
    expected = store_chain.expected_rows(tables, newest.step)
    found = rows_of(collection, tmp_path)
    assert found.keys() == expected.keys()
    exact = make_collection(store_chain.TABLES)
    load_rows(exact, directory, newest.chain)
    for key, row in rows_of(exact, tmp_path / "exact").items():
        values = np.array(row.embedding, np.float32)
        np.testing.assert_array_equal(found[key].embedding, round_to(rows, values))
        for slot, rounded in zip(row.slots, found[key].slots, strict=True):
            values = np.array(slot, np.float32)
            np.testing.assert_array_equal(rounded, round_to("bfloat16", values))


@pytest.mark.parametrize(("dtype", "greatest"), [("bfloat16", 0x7F7F), ("float16", 65504.0)])
def test_no_finite_value_becomes_infinite(dtype, greatest):
    if dtype == "bfloat16":
        greatest = float(from_bfloat16(np.array([greatest], np.uint16))[0])
    values = np.array([3.4e38, -3.4e38, np.inf, -np.inf, 1.0], np.float32)
    assert to_nearest(values, dtype).tolist() == [greatest, -greatest, np.inf, -np.inf, 1.0]
    assert np.isnan(to_nearest(np.array([np.nan], np.float32), dtype)).all()
    some = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    np.testing.assert_array_equal(to_nearest(some, dtype), round_to(dtype, some))
