"""Opens the arrays in files of other systems: NumPy, SafeTensors, Keras, TensorFlow checkpoints."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from embedps.checkpoint.tools.row_output import SAFE_DTYPES
from embedps.errors import UsageError

KINDS = (".npy", ".npz", ".safetensors", ".h5", ".keras", ".index")
FILE_ERRORS = (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile)
_MAX_HEADER_BYTES = 100_000_000  # as `safetensors` has it
_KERAS_WEIGHTS = "model.weights.h5"


@contextmanager
def open_arrays(path: Path) -> Iterator[dict[str, Any]]:
    """Opens a file's arrays by name; that of an .npy file has the empty name.

    An array has a shape, and is read when a slice of it is. Slices must be those of a walk from its
    start to its end. Memory is that of a slice; for a TensorFlow checkpoint, of a variable.

    Raises:
      FILE_ERRORS: the file cannot be read.
    """
    with ExitStack() as stack:
        if path.suffix == ".npy":
            yield {"": np.load(path, mmap_mode="r")}
        elif path.suffix == ".npz":
            archive = stack.enter_context(zipfile.ZipFile(path))
            yield {
                name.removesuffix(".npy"): _Streamed(stack.enter_context(archive.open(name)))  # type: ignore[arg-type]
                for name in archive.namelist()
            }
        elif path.suffix == ".safetensors":
            yield _safetensors(path)
        elif path.suffix == ".index":
            yield _variables(path)
        else:
            import h5py  # which both Keras bring

            file: Any = path
            if path.suffix == ".keras":
                archive = stack.enter_context(zipfile.ZipFile(path))
                file = stack.enter_context(archive.open(_KERAS_WEIGHTS))
            found: dict[str, Any] = {}

            def add(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset):
                    found[name] = item

            stack.enter_context(h5py.File(file, "r")).visititems(add)
            yield found


def find_matrix(path: Path, arrays: dict[str, Any], width: int, name: str | None) -> str:
    """Finds the name of the array of vectors.

    Args:
      path: of the file.
      arrays: of `open_arrays`.
      width: floats per vector.
      name: of the array, or a part of it that no other's has.

    Raises:
      UsageError: there is none, or there are several.
    """
    fits = [n for n, array in arrays.items() if len(array.shape) == 2 and array.shape[1] == width]
    if name is None:  # an optimizer's slots have the shape of the table
        fits = [n for n in fits if "optimizer" not in n.lower()]
    elif name in fits:
        return name
    named = [n for n in fits if name is None or name in n]
    if len(named) != 1:
        shown = ", ".join(named or fits) or "none"
        raise UsageError(
            f"{path}: --tensor must name one array of {width} floats per row but fits "
            f"{len(named)}; the file has {shown[:500]}"
        )
    return named[0]


class _Streamed:
    """An array in an .npz file, which may be compressed."""

    def __init__(self, file: BinaryIO) -> None:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        self.shape, is_fortran, self._dtype = read[version](file)
        if is_fortran and len(self.shape) > 1:
            raise ValueError("an array must be in C order: numpy.ascontiguousarray makes it so")
        self._file = file

    def __getitem__(self, rows: slice) -> np.ndarray:
        shape = (min(rows.stop, self.shape[0]) - rows.start, *self.shape[1:])
        data = self._file.read(int(np.prod(shape)) * self._dtype.itemsize)
        return np.frombuffer(data, self._dtype).reshape(shape)


class _Variable:
    """A variable of a TensorFlow checkpoint."""

    def __init__(self, read: Callable[[], np.ndarray], shape: list[int]) -> None:
        self._read, self.shape = read, tuple(shape)

    @cached_property
    def _value(self) -> np.ndarray:
        return self._read()

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._value[rows]


def _variables(path: Path) -> dict[str, Any]:
    """Opens a checkpoint by its .index file, such as the variables/variables.index of a model."""
    import tensorflow as tf

    def checked(read: Callable[..., Any], *arguments: str) -> Any:
        try:
            return read(*arguments)
        except (tf.errors.OpError, RuntimeError, IndexError) as error:
            raise ValueError(str(error)) from error

    reader = checked(tf.train.load_checkpoint, str(path.with_suffix("")))
    return {
        name: _Variable(partial(checked, reader.get_tensor, name), shape)
        for name, shape in sorted(reader.get_variable_to_shape_map().items())
    }


def _safetensors(path: Path) -> dict[str, Any]:
    import ml_dtypes  # which TensorFlow brings

    dtypes = {safe: dtype for dtype, safe in SAFE_DTYPES.items()}
    dtypes["BF16"] = np.dtype(ml_dtypes.bfloat16)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"its header must have {_MAX_HEADER_BYTES} bytes but has {length}")
        text = file.read(length)
    try:
        header = json.loads(text)
        return {
            name: np.memmap(
                path,
                dtypes[entry["dtype"]],
                "r",
                offset=8 + length + entry["data_offsets"][0],
                shape=tuple(entry["shape"]),
            )
            for name, entry in header.items()
            if name != "__metadata__" and entry["dtype"] in dtypes and 0 not in entry["shape"]
        }
    except (AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"its header must describe arrays: {error}") from error
