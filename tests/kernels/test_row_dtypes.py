"""Rows of bfloat16 and float16 equal NumPy's bit for bit, in memory and in files."""

import numpy as np
import pyarrow as pa
import pytest

from embedps.checkpoint.format.quantize import Encoding, decode, encode, encoding_of
from embedps.checkpoint.format.rows import RowFile
from embedps.errors import UsageError
from embedps.tables import SGD, Adagrad, Ftrl, LazyAdam, RowwiseAdagrad
from embedps.tables.groups import group_tables
from embedps.tables.specs import FeatureSpec
from embedps.tables.table_options import TableOptions
from tests.checkpoint.readers import read_row_file
from tests.kernels.twins import StoredRow, initial_values, round_to
from tests.tables.builders import (
    cuts_of,
    group_files,
    ids,
    look,
    make_collection,
    make_table,
    remove,
    train,
)

OPTIMIZERS = [
    SGD(weight_decay=0.1),
    Adagrad(lazy_decay=3.0),
    Adagrad(),
    RowwiseAdagrad(),
    LazyAdam(),
    Ftrl(l1_regularization_strength=0.01, l2_regularization_strength=0.1),
]
DTYPES = [
    (rows, slots)
    for rows in ("float32", "bfloat16", "float16")
    for slots in ("float32", "bfloat16")
]
IDS = [*range(9), -(2**63), 2**63 - 1]


def records(files) -> dict[int, dict]:
    """Applies the files' records in order: by id the columns, floats as float32."""
    rows: dict[int, dict] = {}
    for file in files:
        for record in read_row_file(file.path).to_pylist():
            rows.pop(record["id"], None)
            if not record.pop("removed"):
                rows[record["id"]] = record
    return rows


def base_of(collection, folder):
    return collection.files.write("base", str(folder), since={})


def steps(dim, count=3):
    random = np.random.default_rng(dim)
    for step in range(1, count + 1):
        scale = 10.0 ** random.uniform(-3, 1, (len(IDS), 1))
        yield step, (random.standard_normal((len(IDS), dim)) * scale).astype(np.float32)


@pytest.mark.parametrize("dim", [1, 21])
@pytest.mark.parametrize(("rows", "slots"), DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.kind)
def test_three_steps_equal_numpy_bit_for_bit(optimizer, rows, slots, dim, tmp_path):
    spec = make_table("t", dim, optimizer=optimizer, seed=7, row_dtype=rows, slot_dtype=slots)
    twins = {i: StoredRow(spec, i) for i in IDS}
    found = []
    for num_shards in (1, 3):
        collection = make_collection([spec], num_shards=num_shards)
        for step, gradients in steps(dim):
            train(collection, {"t": ids(*IDS)}, {"t": gradients}, learning_rate=0.1, step=step)
        found.append(records(base_of(collection, tmp_path / str(num_shards))))
        np.testing.assert_array_equal(
            look(collection, {"t": ids(*IDS)})["t"],
            [found[-1][i]["embedding"] for i in IDS],
        )
    for step, gradients in steps(dim):
        for i, gradient in zip(IDS, gradients, strict=True):
            twins[i].update(gradient, 0.1, step)
    assert found[0] == found[1]
    for i, twin in twins.items():
        np.testing.assert_array_equal(found[0][i]["embedding"], twin.w)
        names = optimizer.optimizer_slot_widths(dim)
        for name, expected in zip(names, twin.slots, strict=True):
            np.testing.assert_array_equal(found[0][i][name], expected)


@pytest.mark.parametrize(("rows", "slots"), DTYPES[1:])
def test_files_hold_what_memory_holds_and_restore_it_onto_other_shards(rows, slots, tmp_path):
    spec = make_table("t", 5, optimizer=Adagrad(), row_dtype=rows, slot_dtype=slots)
    live = make_collection([spec], num_shards=2)
    train(live, {"t": ids(*range(100))}, {"t": np.full((100, 5), 0.3, np.float32)}, step=1)
    base = base_of(live, tmp_path / "base")
    train(live, {"t": ids(*range(40))}, {"t": np.full((40, 5), 0.7, np.float32)}, step=2)
    remove(live, "t", [3, 4])
    delta = live.files.write("delta", str(tmp_path / "delta"), since=cuts_of(base))
    for file in (*base, *delta):
        stored = RowFile(file.path, decoded=False)
        assert stored.encoding == Encoding(rows=rows, optimizer_slots=slots)
        table = pa.Table.from_batches(stored.batches(), stored.schema)
        assert encode(decode("file", table), stored.encoding).equals(table)  # exact both ways
        width = table.schema.field("embedding").type.value_type.bit_width
        assert width == (32 if rows == "float32" else 16)

    restored = make_collection([spec], num_shards=3)
    for part in (base, delta):
        restored.files.load(group_files(part))
    assert records(base_of(restored, tmp_path / "again")) == records([*base, *delta])
    for collection in (live, restored):  # and they go on alike
        train(collection, {"t": ids(*range(50))}, {"t": np.full((50, 5), 0.1, np.float32)}, step=3)
    again = [base_of(c, tmp_path / f"last-{i}") for i, c in enumerate((live, restored))]
    assert records(again[0]) == records(again[1])


@pytest.mark.parametrize("rows", ["bfloat16", "float16"])
def test_rows_of_another_dtype_are_rounded_to_the_nearest(rows, tmp_path):
    """So do quantized ones, and an evaluator's tables, which hold no slots."""
    wide = make_collection([make_table("t", 6, optimizer=Adagrad())])
    train(wide, {"t": ids(*IDS)}, {"t": np.full((len(IDS), 6), 0.3, np.float32)}, step=1)
    spec = make_table("t", 6, optimizer=Adagrad(), row_dtype=rows, slot_dtype="bfloat16")
    for encoding in (Encoding(), Encoding(rows="int8")):
        files = wide.files.write("base", str(tmp_path / encoding.rows), since={}, encoding=encoding)
        stored = records(files)
        for trainable in (True, False):
            narrow = make_collection([spec], trainable=trainable)
            narrow.files.load(group_files(files))
            folder = tmp_path / f"{encoding.rows}-{trainable}"
            for i, row in records(base_of(narrow, folder)).items():
                values = np.array(stored[i]["embedding"], np.float32)
                np.testing.assert_array_equal(row["embedding"], round_to(rows, values))
                if trainable:
                    sums = np.array(stored[i]["accumulator"], np.float32)
                    np.testing.assert_array_equal(row["accumulator"], round_to("bfloat16", sums))
    # And back: float32 has every value of the others.
    files = base_of(narrow, tmp_path / "narrow")
    again = make_collection([make_table("t", 6, optimizer=Adagrad())], trainable=False)
    again.files.load(group_files(files))
    batch = {"t": ids(*IDS)}
    np.testing.assert_array_equal(look(again, batch)["t"], look(narrow, batch)["t"])


def test_quantized_files_of_small_rows_have_the_codes_of_their_floats(tmp_path):
    spec = make_table("t", 6, optimizer=Adagrad(), row_dtype="bfloat16")
    live = make_collection([spec])
    look(live, {"t": ids(*IDS)}, insert=True)
    exact, encoded = (
        live.files.write("base", str(tmp_path / e.rows), since={}, encoding=e)[0]
        for e in (Encoding(), Encoding(rows="int8"))
    )
    stored = RowFile(encoded.path, decoded=False)
    found = pa.Table.from_batches(stored.batches(), stored.schema)
    assert encoding_of("file", found.schema)[0] == Encoding(rows="int8")
    assert found.equals(encode(read_row_file(exact.path), Encoding(rows="int8")))


def test_absent_ids_read_as_their_rows_would():
    spec = make_table("t", 4, row_dtype="float16", absent="initial", capacity=1)
    collection = make_collection([spec])
    expected = round_to("float16", initial_values(spec, IDS))
    batch = {"t": ids(*IDS)}
    np.testing.assert_array_equal(look(collection, batch)["t"], expected)
    np.testing.assert_array_equal(look(collection, batch, insert=True)["t"], expected)


def test_tables_of_other_dtypes_are_other_groups_of_one_stem():
    tables = [
        make_table("a", 4),
        make_table("b", 4, row_dtype="bfloat16"),
        make_table("c", 4, slot_dtype="bfloat16"),
        make_table("d", 4, row_dtype="bfloat16"),
    ]
    groups = group_tables(tables, [FeatureSpec(name=t.name, table=t.name) for t in tables])
    assert [[t.name for t in g.tables] for g in groups] == [["a"], ["b", "d"], ["c"]]
    assert [(g.row_dtype, g.slot_dtype) for g in groups] == [
        ("float32", "float32"),
        ("bfloat16", "float32"),
        ("float32", "bfloat16"),
    ]
    assert len({g.stem for g in groups}) == 1


def test_flags_of_a_model_declare_dtypes():
    table = TableOptions(row_dtype="float16", slot_dtype="bfloat16").table("t")
    assert (table.row_dtype, table.slot_dtype) == ("float16", "bfloat16")
    assert table.to_json()["row_dtype"] == "float16"
    assert "row_dtype" not in TableOptions().table("t").to_json()
    with pytest.raises(UsageError, match="row_dtype must be"):
        TableOptions(row_dtype="int8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"row_dtype": "int8"},
            "row_dtype must be one of float32, bfloat16, float16 but got 'int8'",
        ),
        (
            {"slot_dtype": "float16"},
            "slot_dtype must be one of float32, bfloat16 but got 'float16'",
        ),
    ],
)
def test_unknown_dtype_is_named(fields, message):
    with pytest.raises(UsageError, match=message):
        make_table("t", 4, **fields)
