"""Quantized rows: the bound holds exactly, and what is stored decodes to what was computed."""

import tempfile
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embedps.checkpoint.format.quantize import (
    FLOAT32,
    Encoding,
    OptimizerSlotEncoding,
    RowEncoding,
    decode,
    dequantize,
    encode,
    encoding_of,
    from_bfloat16,
    pack,
    quantize,
    to_bfloat16,
    unpack,
)
from embedps.checkpoint.format.rows import check_schema
from embedps.constants import QUANTIZED_LEVELS
from embedps.errors import CorruptCheckpointError, UsageError
from tests.checkpoint.builders import Record, row_batch, some_rows
from tests.checkpoint.readers import read_row_file

QUANTIZED: list[RowEncoding] = ["int8", "int4"]


@pytest.mark.parametrize("rows", QUANTIZED)
@settings(max_examples=200, deadline=None)
@given(values=some_rows)
def test_no_value_is_further_than_half_the_scale_in_exact_arithmetic(rows, values):
    codes, scale, offset = quantize(values, rows)
    assert codes.max(initial=0) <= QUANTIZED_LEVELS[rows]
    decoded = dequantize(codes, scale, offset)
    for i, j in np.ndindex(values.shape):
        exact = Fraction(float(offset[i])) + Fraction(float(scale[i])) * int(codes[i, j])
        assert Fraction(float(decoded[i, j])) == exact  # float32 holds it: any reader's arithmetic
        error = abs(exact - Fraction(float(values[i, j])))
        assert error <= Fraction(float(scale[i])) / 2


@pytest.mark.parametrize("rows", QUANTIZED)
def test_scale_is_a_step_of_the_rows_range(rows):
    values = np.random.default_rng(3).standard_normal((1000, 16)).astype(np.float32)
    _, scale, _ = quantize(values, rows)
    steps = (values.max(axis=1) - values.min(axis=1)) / QUANTIZED_LEVELS[rows]
    assert np.all(scale >= steps * (1 - 1e-6))
    assert np.all(scale <= steps * 1.002)


def test_equal_values_are_exact_and_what_is_not_finite_is_nan():
    values = np.array([[0.3, 0.3], [0, 0], [np.nan, 1], [np.inf, 1], [2.0**126, 0]], np.float32)
    decoded = dequantize(*quantize(values, "int4"))
    np.testing.assert_array_equal(decoded[:2], values[:2])
    assert np.isnan(decoded[2:]).all()


@given(
    codes=hnp.arrays(
        np.uint8, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.integers(0, 15)
    )
)
def test_nibbles_come_back(codes):
    packed = pack(codes)
    assert packed.shape == (len(codes), (codes.shape[1] + 1) // 2)
    np.testing.assert_array_equal(unpack(packed, codes.shape[1]), codes)


def test_bfloat16_is_ml_dtypes():
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, 20_000, np.uint32)
    values = np.append(
        bits.view(np.float32), np.array([0, -0.0, np.inf, -np.inf, 1e-45], np.float32)
    )
    with np.errstate(invalid="ignore"):
        theirs = values.astype(ml_dtypes.bfloat16)
    ours = to_bfloat16(values)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(ours[number], theirs.view(np.uint16)[number])
    assert np.isnan(from_bfloat16(ours[~number])).all()
    np.testing.assert_array_equal(from_bfloat16(ours)[number], theirs.astype(np.float32)[number])


@pytest.mark.parametrize("rows", ["float32", "bfloat16", "float16", *QUANTIZED])
@pytest.mark.parametrize("slots", ["float32", "bfloat16"])
def test_encoded_file_is_read_as_floats(rows: RowEncoding, slots: OptimizerSlotEncoding):
    records = pa.Table.from_batches(
        [row_batch([Record("C1", i, i / 7) for i in range(9)] + [Record("C2", 3, None)])]
    )
    encoding = Encoding(rows=rows, optimizer_slots=slots)
    stored = encode(records, encoding)
    check_schema("rows.arrow", stored.schema)
    assert encoding_of("rows.arrow", stored.schema)[0] == encoding
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.arrow"
        with pa.ipc.new_file(path, stored.schema) as writer:
            writer.write_table(stored)
        found = read_row_file(path)
    assert found.schema.equals(records.schema)
    assert found.schema.metadata == records.schema.metadata
    for name in ("table", "id", "last_step", "frequency", "removed"):
        assert found[name].equals(records[name])
    values = np.array(records["embedding"].to_pylist(), np.float32)
    expected = {
        "float32": lambda: values,
        "bfloat16": lambda: from_bfloat16(to_bfloat16(values)),
        "float16": lambda: values.astype(np.float16).astype(np.float32),
    }.get(rows, lambda: dequantize(*quantize(values, rows)))()
    np.testing.assert_array_equal(np.array(found["embedding"].to_pylist()), expected)
    sums = np.array(records["accumulator"].to_pylist(), np.float32)
    expected = sums if slots == "float32" else from_bfloat16(to_bfloat16(sums))
    np.testing.assert_array_equal(np.array(found["accumulator"].to_pylist()), expected)
    assert not found["embedding"][9].as_py()[0]  # a removal's zeros


def test_exact_encoding_changes_nothing():
    records = pa.Table.from_batches([row_batch([Record("C1", 1, 0.5)])])
    assert encode(records, FLOAT32) is records
    assert decode("rows.arrow", records) is records


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({b"embedps.row_file": b"3"}, r"rows\.arrow.*'embedps\.row_file': expected '1' or '2'"),
        ({b"embedps.rows": b"int2"}, r"'embedps\.rows'.*found 'int2'"),
        ({b"embedps.slots": b"int8"}, r"found 'int8' and 'int8'"),
        ({b"embedps.dim": b"0"}, r"'embedps\.dim'.*found '0'"),
        ({b"embedps.dim": b"9"}, r"'embedding': expected a fixed_size_list of uint8\[9\]"),
        ({b"embedps.rows": b"int4"}, r"'embedding': expected a fixed_size_list of uint8\[1\]"),
    ],
)
def test_schema_that_contradicts_itself_is_refused(changed, message):
    records = pa.Table.from_batches([row_batch([Record("C1", 1, 0.5)])])
    stored = encode(records, Encoding(rows="int8"))
    schema = stored.schema.with_metadata({**stored.schema.metadata, **changed})
    with pytest.raises(CorruptCheckpointError, match=message):
        check_schema("rows.arrow", schema)


def test_encoding_names_what_it_may_be():
    with pytest.raises(UsageError, match=r"rows must be one of float32, int8, int4, .*'int2'"):
        Encoding(rows="int2")  # type: ignore[arg-type]
