"""Puts rows into arrays at their places: in memory, or on a disk, part by part.

On the disk, rows come in any order and go to the file of the part that has their places. Then the
parts are made one after another, each in memory, and written to the end of its array's file. So
files are written and read from their beginnings to their ends, and memory is that of a part. The
arrays are those files, mapped: the system drops pages of them when memory is scarce.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from embedps.errors import UsageError

if TYPE_CHECKING:  # it imports TensorFlow
    from embedps.tables.tiered import Tiered

Arrays = dict[str, npt.NDArray[Any]]
MAX_PARTS: Final = 256  # of a stack; each is an open file
_ALIGNMENT = 64  # TensorFlow shares memory of this alignment, and copies other
_AT_ONCE_BYTES = 4 << 20
_PLACE = "place"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Of arrays of the same places.

    Attributes:
      places: the length of each.
      of_row: by array, the dtype and shape of a row in it.
    """

    places: int
    of_row: Mapping[str, tuple[Any, tuple[int, ...]]]

    @property
    def row_bytes(self) -> int:
        """The bytes of a row in all arrays."""
        return sum(
            np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
            for dtype, shape in self.of_row.values()
        )

    @property
    def num_bytes(self) -> int:
        """The bytes of all arrays."""
        return self.places * self.row_bytes


class PlacedRows(Protocol):
    """Arrays that are being filled; places that get no row have zeros."""

    def put(self, places: npt.NDArray[np.int64], rows: Arrays) -> None:
        """Puts rows at places; of a place that comes again, the last row counts."""

    def arrays(self) -> Arrays:
        """Gives the arrays. No row comes later."""


def place_rows(layouts: list[Layout], memory: Tiered | None, *, ids_bytes: int) -> list[PlacedRows]:
    """Makes arrays for rows: on the disk, unless all fit into the memory.

    Args:
      memory: for all arrays and the ids; None is no limit.
      ids_bytes: what the ids take of it.

    Raises:
      UsageError: the ids and a part of the arrays do not fit, or the directory has no place.
    """
    total = ids_bytes + sum(layout.num_bytes for layout in layouts)
    if memory is None or total <= memory.max_memory_bytes:
        return [_InMemory(layout) for layout in layouts]
    room = memory.max_memory_bytes - ids_bytes
    least = max(-(-layout.places // MAX_PARTS) * layout.row_bytes for layout in layouts)
    if room < least:
        raise UsageError(
            f"max_memory_bytes must be at least {ids_bytes + least} to export this checkpoint, "
            f"whose ids stay in memory, but is {memory.max_memory_bytes}"
        )
    directory = Path(memory.directory)
    return [
        OnDisk(layout, directory, part_places=max(1, room // layout.row_bytes))
        for layout in layouts
    ]


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Makes an array of zeros whose memory TensorFlow can share; pages are taken when written."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(num_bytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    array: npt.NDArray[Any] = raw[start : start + num_bytes].view(dtype).reshape(shape)
    return array


class _InMemory:
    def __init__(self, layout: Layout) -> None:
        self._arrays = {
            name: aligned_zeros((layout.places, *shape), dtype)
            for name, (dtype, shape) in layout.of_row.items()
        }

    def put(self, places: npt.NDArray[np.int64], rows: Arrays) -> None:
        for name, values in rows.items():
            self._arrays[name][places] = values

    def arrays(self) -> Arrays:
        return self._arrays


class OnDisk:
    """Arrays in files of a directory, which have no names and end with the process."""

    def __init__(self, layout: Layout, directory: Path, *, part_places: int) -> None:
        """Takes no memory but that of a part of so many places, while the arrays are made.

        Raises:
          UsageError: no file can be made in the directory.
        """
        self._layout = layout
        self._directory = directory
        self._part_places = part_places
        self._record = np.dtype([(_PLACE, np.int64), *_fields(layout)])
        self._parts = [self._file() for _ in range(-(-layout.places // part_places))]

    def put(self, places: npt.NDArray[np.int64], rows: Arrays) -> None:
        """Puts rows of all arrays at places."""
        step = max(1, _AT_ONCE_BYTES // self._record.itemsize)
        for first in range(0, len(places), step):
            some = slice(first, first + step)
            self._put(places[some], {name: values[some] for name, values in rows.items()})

    def _put(self, places: npt.NDArray[np.int64], rows: Arrays) -> None:
        part = places // self._part_places
        order = np.argsort(part, kind="stable")
        records = np.empty(len(places), self._record)
        records[_PLACE] = places[order]
        for name, values in rows.items():
            records[name] = values[order]
        bounds = np.searchsorted(part[order], np.arange(len(self._parts) + 1))
        for at in np.flatnonzero(np.diff(bounds)):
            self._write(self._parts[at], records[bounds[at] : bounds[at + 1]])

    def arrays(self) -> Arrays:
        """Makes the arrays, part by part."""
        files = {name: self._file() for name in self._layout.of_row}
        for number, part in enumerate(self._parts):
            first = number * self._part_places
            places = min(self._part_places, self._layout.places - first)
            rows = np.zeros(places, np.dtype(_fields(self._layout)))
            part.seek(0)
            step = max(1, _AT_ONCE_BYTES // self._record.itemsize)
            while data := part.read(step * self._record.itemsize):
                records = np.frombuffer(data, self._record)
                for name in files:
                    rows[name][records[_PLACE] - first] = records[name]
            part.close()  # its blocks are free again
            for name, file in files.items():
                for start in range(0, places, step):
                    self._write(file, np.ascontiguousarray(rows[name][start : start + step]))
                _forget(file)
        self._parts = []
        return {
            name: np.asarray(
                np.memmap(files[name], dtype, "r+", shape=(self._layout.places, *shape))
            )
            for name, (dtype, shape) in self._layout.of_row.items()
        }

    def _file(self) -> IO[bytes]:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryFile(dir=self._directory)
        except OSError as error:
            raise UsageError(
                f"spill_dir {self._directory}: cannot make a file: {error.strerror}"
            ) from error

    def _write(self, file: IO[bytes], rows: npt.NDArray[Any]) -> None:
        try:
            file.write(rows.tobytes())
        except OSError as error:
            raise UsageError(
                f"spill_dir {self._directory}: cannot write: {error.strerror}"
            ) from error


def _fields(layout: Layout) -> list[Any]:
    return [(name, dtype, shape) for name, (dtype, shape) in layout.of_row.items()]


def _forget(file: IO[bytes]) -> None:
    """Writes a file out, and gives the pages back that the system has of it."""
    file.flush()
    os.fdatasync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
