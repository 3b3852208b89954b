"""Dense files: every dtype and shape comes back bit for bit, in order; damage is named."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest

from embedps.checkpoint.format.dense import SCHEMA, read_dense, read_named, write_dense
from embedps.errors import CheckpointError, CorruptCheckpointError
from embedps.storage import file_io

DTYPES = [
    *(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(np.dtype(name) for name in ("bool", "float16", "float32", "float64", "complex64")),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
]


def write(path: Path, arrays: dict[str, np.ndarray]):
    return write_dense(path / "dense-1" / "dense.arrow", arrays, root=path)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path, dtype):
    rng = np.random.default_rng(1)
    arrays = {}
    for shape in [(), (0,), (1,), (3, 4), (2, 0, 5), (2, 3, 4)]:
        values = rng.integers(0, 2 if dtype.kind == "b" else 100, shape)
        arrays[f"v{shape}"] = np.asarray(values).astype(dtype)
    write(tmp_path, arrays)
    found = read_dense(tmp_path / "dense-1" / "dense.arrow")
    assert list(found) == list(arrays)
    assert all(same_bits(found[name], arrays[name]) for name in arrays)
    found["v(1,)"][:] = 0  # what is restored may be changed


def test_some_variables_are_read_alone(tmp_path):
    arrays = {name: np.full(3, place, np.float32) for place, name in enumerate("cab")}
    write(tmp_path, arrays)
    path = tmp_path / "dense-1" / "dense.arrow"
    for found in (
        read_dense(path, ["b", "c", "absent"]),
        read_named(path, ["b", "c", "absent"])[1],
    ):
        assert list(found) == ["c", "b"]
        assert all(same_bits(found[name], arrays[name]) for name in found)
    assert read_named(path, ())[0] == ["c", "a", "b"]


def test_nan_and_infinity_keep_their_bits(tmp_path):
    bits = np.array([0x7FC00001, 0xFF800000, 0x80000000, 0x7F800001], np.uint32)
    write(tmp_path, {"x": bits.view(np.float32)})
    found = read_dense(tmp_path / "dense-1" / "dense.arrow")["x"]
    np.testing.assert_array_equal(found.view(np.uint32), bits)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.T,
        lambda x: x[::2, ::-1],
        lambda x: np.broadcast_to(x[0], (4, 6)),
        lambda x: x.astype(">f4"),
    ],
    ids=["transposed", "strided", "broadcast", "big-endian"],
)
def test_any_memory_layout_gives_the_same_values(tmp_path, make):
    array = make(np.arange(24, dtype=np.float32).reshape(4, 6))
    write(tmp_path, {"x": array})
    found = read_dense(tmp_path / "dense-1" / "dense.arrow")["x"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, array)


def test_order_and_any_name_are_kept(tmp_path):
    names = ["z", "a", "dense/kernel:0", "é", "", "optimizer/m/dense/kernel"]
    write(tmp_path, {name: np.array(i) for i, name in enumerate(names)})
    found = read_dense(tmp_path / "dense-1" / "dense.arrow")
    assert list(found) == names
    assert [int(array) for array in found.values()] == list(range(len(names)))


def test_entry_says_what_was_written(tmp_path):
    entry = write(tmp_path, {"a": np.zeros(3), "b": np.ones(2)})
    path = tmp_path / "dense-1" / "dense.arrow"
    assert entry.path == "dense-1/dense.arrow"
    assert (entry.bytes, entry.xxh3_64) == file_io.checksum_file(path)
    assert (entry.rows, entry.removed) == (2, 0)
    empty = write(tmp_path, {})
    assert empty.rows == 0
    assert read_dense(path) == {}


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.array([b"x"])], ids=str)
def test_what_is_no_number_is_refused_and_leaves_nothing(tmp_path, array):
    with pytest.raises(CheckpointError, match="variable 'x' must have a numeric dtype"):
        write(tmp_path, {"x": array})
    assert list((tmp_path / "dense-1").iterdir()) == []


def test_plain_arrow_reads_it(tmp_path):
    write(tmp_path, {"x": np.array([[1.5, 2.5]], np.float32)})
    with pa.ipc.open_file(tmp_path / "dense-1" / "dense.arrow") as reader:
        row = reader.read_all().to_pylist()[0]
    assert row == {
        "name": "x",
        "dtype": "float32",
        "shape": [1, 2],
        "data": np.array([1.5, 2.5], "<f4").tobytes(),
    }


def write_raw(path: Path, rows: list[dict], schema: pa.Schema = SCHEMA) -> Path:
    with pa.ipc.new_file(path, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [3]}, r"variable 'x': expected the bytes of float32 \[3\], found 8 bytes"),
        ({"shape": [-2]}, "expected the bytes of"),
        ({"dtype": "float99"}, "expected a numeric dtype, found 'float99'"),
        ({"dtype": "object"}, "expected a numeric dtype, found 'object'"),
        ({"dtype": "finfo"}, "expected a numeric dtype, found 'finfo'"),
    ],
)
def test_inconsistent_variables_are_named(tmp_path, change, message):
    row = {"name": "x", "dtype": "float32", "shape": [2], "data": bytes(8), **change}
    path = write_raw(tmp_path / "dense.arrow", [row])
    with pytest.raises(CorruptCheckpointError, match=message) as error:
        read_dense(path)
    assert str(path) in str(error.value)


def test_variable_twice_is_corrupt(tmp_path):
    row = {"name": "x", "dtype": "float32", "shape": [2], "data": bytes(8)}
    path = write_raw(tmp_path / "dense.arrow", [row, row])
    with pytest.raises(CorruptCheckpointError, match="has variable 'x' twice"):
        read_dense(path)


def test_other_files_are_corrupt(tmp_path):
    path = tmp_path / "dense.arrow"
    with pytest.raises(CorruptCheckpointError, match="cannot be read"):
        read_dense(path)
    write(tmp_path, {"x": np.zeros(100)})
    whole = (tmp_path / "dense-1" / "dense.arrow").read_bytes()
    for content in (b"", b"not arrow", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(CorruptCheckpointError, match=r"dense\.arrow: cannot be read"):
            read_dense(path)
    write_raw(path, [{"id": 1}], pa.schema([pa.field("id", pa.int64())]))
    with pytest.raises(CorruptCheckpointError, match="expected the columns of a dense file"):
        read_dense(path)
