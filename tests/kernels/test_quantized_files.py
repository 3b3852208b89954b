"""Quantized saves of the kernels equal NumPy's bit for bit, and the ops load them again."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from embedps.checkpoint.format.quantize import (
    FLOAT32,
    Encoding,
    decode,
    encode,
    encoding_of,
)
from embedps.checkpoint.format.rows import check_schema
from embedps.tables import Adagrad
from tests.checkpoint.builders import row_schema, some_rows
from tests.checkpoint.readers import read_row_file
from tests.tables.builders import (
    as_stored,
    cuts_of,
    group_files,
    ids,
    make_collection,
    make_table,
    remove,
    rows_in,
    train,
)

ENCODINGS = [
    Encoding(rows="int8"),
    Encoding(rows="int4"),
    Encoding(optimizer_slots="bfloat16"),
    Encoding(rows="int8", optimizer_slots="bfloat16"),
    Encoding(rows="int4", optimizer_slots="bfloat16"),
]
GROUP = "dim{}-adagrad"


def name_of(encoding):
    return f"{encoding.rows}-{encoding.optimizer_slots}"


def collection_of(dim, num_shards=1):
    return make_collection([make_table("C1", dim, optimizer=Adagrad())], num_shards=num_shards)


def records_of(embeddings: np.ndarray, accumulators: np.ndarray) -> pa.Table:
    """Makes a row file's records of table C1, with ids from 0 on."""
    n, dim = embeddings.shape
    fields = list(row_schema(dim, ["C1"]))
    fields[3] = pa.field("accumulator", fields[2].type, nullable=False)
    schema = pa.schema(fields, row_schema(dim, ["C1"]).metadata)
    index = pa.array(np.zeros(n), pa.int16())
    columns = [
        pa.DictionaryArray.from_arrays(index, pa.array(["C1"])),
        pa.array(range(n), pa.int64()),
        pa.FixedSizeListArray.from_arrays(pa.array(embeddings.reshape(-1)), type=fields[2].type),
        pa.FixedSizeListArray.from_arrays(pa.array(accumulators.reshape(-1)), type=fields[3].type),
        pa.array(range(n), pa.uint32()),
        pa.array(range(1, n + 1), pa.uint32()),
        pa.array([False] * n),
    ]
    return pa.table(columns, schema)


def write(path, records):
    with pa.ipc.new_file(path, records.schema) as writer:
        writer.write_table(records)


def stored(path) -> pa.Table:
    """Reads the file's columns, ordered by id, and checks them."""
    with pa.OSFile(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    check_schema(path, table.schema)
    return table.sort_by("id")


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    """Compares bit for bit, except the payload of a NaN."""
    assert found.column_names == expected.column_names
    for name in found.column_names:
        if pa.types.is_fixed_size_list(found.schema.field(name).type):
            pairs = [c.combine_chunks().flatten().to_numpy() for c in (found[name], expected[name])]
        else:
            pairs = [c.to_numpy() for c in (found[name], expected[name])]
        np.testing.assert_array_equal(pairs[0], pairs[1], err_msg=name)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=name_of)
@settings(max_examples=6, deadline=None)
@given(values=some_rows)
def test_ops_write_what_the_twin_encodes_and_load_what_it_decodes(
    encoding, tmp_path_factory, values
):
    folder = tmp_path_factory.mktemp("files")
    records = records_of(values, np.abs(values[::-1]))
    write(folder / "exact.arrow", records)
    live = collection_of(values.shape[1])
    group = live.groups[0].name
    live.files.load({group: [as_stored(folder / "exact.arrow")]})
    (file,) = live.files.write("base", str(folder / "encoded"), since={}, encoding=encoding)
    assert encoding_of(file.path, stored(file.path).schema)[0] == encoding
    twin = encode(records, encoding)
    assert_same(stored(file.path), twin)

    other = collection_of(values.shape[1])
    assert other.files.load({group: [file.stored]}) == len(values)
    (again,) = other.files.write("base", str(folder / "again"), since={})
    assert_same(stored(again.path), decode("twin", twin))
    live.drop()
    other.drop()


@pytest.mark.parametrize("encoding", ENCODINGS, ids=name_of)
def test_chain_of_mixed_encodings_is_loaded_onto_other_shards(encoding, tmp_path):
    dim = 5
    live = collection_of(dim, num_shards=2)
    rng = np.random.default_rng(1)

    def step(used, number):
        gradients = rng.standard_normal((len(used), dim)).astype(np.float32)
        train(live, {"C1": ids(*used)}, {"C1": gradients}, step=number)

    step(range(100), 1)
    base = live.files.write("base", str(tmp_path / "1"), since={}, encoding=encoding)
    step(range(0, 100, 3), 2)
    remove(live, "C1", [3, 4])
    delta = live.files.write("delta", str(tmp_path / "2"), since=cuts_of(base))
    step([0, 4], 3)
    last = live.files.write("delta", str(tmp_path / "3"), since=cuts_of(delta), encoding=encoding)

    files = [f for part in (base, delta, last) for f in part]
    expected: dict[int, dict] = {}
    for file in files:
        for record in read_row_file(file.path).to_pylist():
            expected.pop(record["id"], None)
            if not record.pop("removed"):
                expected[record["id"]] = record
    assert sorted(expected) == [i for i in range(100) if i != 3]
    restored = collection_of(dim, num_shards=3)
    for part in (base, delta, last):
        restored.files.load(group_files(part))
    found = rows_in([f.path for f in restored.files.write("base", str(tmp_path / "all"), since={})])
    assert {i for _, i in found} == expected.keys()
    for (_, i), row in found.items():
        assert list(row.embedding) == expected[i]["embedding"]
        assert list(row.slots[0]) == expected[i]["accumulator"]
        assert (row.last_step, row.frequency) == (
            expected[i]["last_step"],
            expected[i]["frequency"],
        )


def test_bytes_of_dim_16_shrink_as_stated(tmp_path):
    """A row has 19 bytes besides its floats; embeddings take 64, 24 (int8) or 16 (int4) bytes."""
    live = collection_of(16)
    train(live, {"C1": ids(*range(20_000))}, {"C1": np.ones((20_000, 16), np.float32)})
    expected = {
        FLOAT32: 64 + 64,
        Encoding(rows="int8"): 24 + 64,
        Encoding(rows="int8", optimizer_slots="bfloat16"): 24 + 32,
        Encoding(rows="int4", optimizer_slots="bfloat16"): 16 + 32,
    }
    for encoding, floats in expected.items():
        (file,) = live.files.write(
            "base", str(tmp_path / name_of(encoding)), since={}, encoding=encoding
        )
        assert abs(file.bytes / 20_000 - (floats + 2 + 8 + 4 + 4 + 1 / 8)) < 0.5
