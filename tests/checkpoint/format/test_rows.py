"""Replaying a chain: equal to a dictionary that the same records are applied to."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import SaveKind
from embedps.errors import CheckpointError, CorruptCheckpointError
from tests.checkpoint.builders import (
    GROUP,
    Record,
    make_manifest,
    make_run,
    row_batch,
    row_schema,
    write_save,
)
from tests.checkpoint.readers import newest_of, read_chain, read_row_file, read_table


def live_rows(table: pa.Table) -> list[tuple[str, int, float]]:
    embeddings = table["embedding"].to_pylist()
    assert all(a == -b for a, b in embeddings)
    assert table["accumulator"].to_pylist() == [[10 * a] for a, _ in embeddings]
    keys = zip(table["table"].to_pylist(), table["id"].to_pylist(), strict=True)
    return [(name, i, value) for (name, i), (value, _) in zip(keys, embeddings, strict=True)]


def test_example_is_replayed_with_its_removals(tmp_path):
    run = make_run(tmp_path)
    newest = newest_of(run.directory)
    expected = [("C1", i, float(i)) for i in range(8)] + [("C2", 6, 0.25)]
    expected[3], expected[4] = ("C1", 3, 33.0), ("C1", 4, 40.0)
    rows = read_chain(run.directory, newest, GROUP)
    assert live_rows(rows) == expected
    assert rows.column_names == [
        "table",
        "id",
        "embedding",
        "accumulator",
        "last_step",
        "frequency",
    ]
    assert rows["frequency"].to_pylist() == [i for _, i, _ in expected]


def test_earlier_manifest_gives_the_earlier_rows(tmp_path):
    run = make_run(tmp_path)
    second = read_chain(run.directory, run.directory.read(2), GROUP)
    ids = [(name, i) for name, i, _ in live_rows(second)]
    assert ids == [("C1", i) for i in range(8) if i != 3] + [("C2", 5), ("C2", 6)]


def test_one_table_is_read_by_its_name(tmp_path):
    run = make_run(tmp_path)
    newest = newest_of(run.directory)
    rows = read_table(run.directory, newest, "C2")
    assert rows["id"].to_pylist() == [6]
    assert "table" not in rows.column_names
    with pytest.raises(CheckpointError, match=r"no table 'C9', it has \['C1', 'C2'\]"):
        read_table(run.directory, newest, "C9")
    with pytest.raises(CheckpointError, match=r"no group 'other', it has \['dim2'\]"):
        read_chain(run.directory, newest, "other")


ids = st.one_of(st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1]))
values = st.one_of(st.none(), st.integers(-100, 100).map(float))
records = st.lists(st.builds(Record, st.sampled_from(["C1", "C2"]), ids, values), max_size=12)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    base=records,
    deltas=st.lists(records, max_size=3),
    shards=st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
def test_replay_equals_a_dictionary(tmp_path_factory, base, deltas, shards):
    directory = CheckpointDirectory(tmp_path_factory.mktemp("chain"))
    base = [record for record in base if record.value is not None]
    chain = []
    expected: dict[tuple[str, int], float] = {}
    for number, (save, num_shards) in enumerate(zip([base, *deltas], shards, strict=False)):
        kind: SaveKind = "base" if number == 0 else "delta"
        chain.append(write_save(directory, kind, number, save, num_shards))
        for record in save:
            if record.value is None:
                expected.pop((record.table, record.id), None)
            else:
                expected[record.table, record.id] = record.value
    rows = read_chain(directory, make_manifest(9, chain), GROUP)
    assert live_rows(rows) == [(*key, expected[key]) for key in sorted(expected)]


def test_tables_in_another_order_are_matched_by_name(tmp_path):
    directory = CheckpointDirectory(tmp_path)
    base = write_save(directory, "base", 1, [Record("C1", 2, 1.0), Record("C2", 2, 2.0)], 1)
    path = directory.file(base.files[0])
    swapped = [Record("C2", 2, 5.0), Record("C1", 4, 6.0)]
    with pa.ipc.new_file(path.with_name("other.arrow"), row_schema(tables=("C2", "C1"))) as writer:
        writer.write_batch(row_batch(swapped, ("C2", "C1")))
    delta_path = directory.shard_path("delta", 2, GROUP, 0, 1)
    delta = write_save(directory, "delta", 2, [], 1)
    path.with_name("other.arrow").replace(delta_path)
    rows = read_chain(directory, make_manifest(2, [base, delta]), GROUP)
    assert live_rows(rows) == [("C1", 2, 1.0), ("C1", 4, 6.0), ("C2", 2, 5.0)]


def changed_schema(name: str, kind: pa.DataType) -> pa.Schema:
    schema = row_schema()
    return schema.set(schema.get_field_index(name), pa.field(name, kind, nullable=False))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (changed_schema("id", pa.int32()), "field 'id': expected type int64, found int32"),
        (changed_schema("removed", pa.int8()), "field 'removed': expected type bool, found int8"),
        (changed_schema("embedding", pa.list_(pa.float32())), "'embedding': expected a fixed_size"),
        (changed_schema("accumulator", pa.list_(pa.float64(), 1)), "'accumulator': expected a"),
        (row_schema().remove(0), "columns: expected"),
        (row_schema().with_metadata({}), "'embedps.row_file': expected '1' or '2', found 'none'"),
        (row_schema().with_metadata({"embedps.row_file": "3"}), "expected '1' or '2', found '3'"),
    ],
)
def test_other_schemas_are_corrupt(tmp_path, schema, message):
    path = tmp_path / "rows.arrow"
    with pa.ipc.new_file(path, schema):
        pass
    with pytest.raises(CorruptCheckpointError, match=message) as error:
        read_row_file(path)
    assert str(path) in str(error.value)


def test_nulls_are_corrupt(tmp_path):
    path = tmp_path / "rows.arrow"
    schema = row_schema()
    nullable = pa.schema([field.with_nullable(True) for field in schema], schema.metadata)
    batch = row_batch([Record("C1", 1, 1.0)])
    columns = [pa.nulls(1, pa.int64()) if n == "id" else batch[n] for n in schema.names]
    with pa.ipc.new_file(path, nullable) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=nullable))
    with pytest.raises(CorruptCheckpointError, match="field 'id': expected no nulls, found 1"):
        read_row_file(path)


def test_absent_and_truncated_files_are_corrupt(tmp_path):
    path = tmp_path / "rows.arrow"
    with pytest.raises(CorruptCheckpointError, match=r"rows\.arrow: cannot be read"):
        read_row_file(path)
    with pa.ipc.new_file(path, row_schema()) as writer:
        writer.write_batch(row_batch([Record("C1", i, float(i)) for i in range(100)]))
    whole = path.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 20).astype(int):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpointError, match=r"rows\.arrow: cannot be read"):
            read_row_file(path)
