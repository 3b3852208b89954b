"""Requests as columns in two matrices, and batches of them.

One matrix holds the columns of floats, one those of integers: a call of a tf.function costs some
20 us per tensor, and a click model has 39 columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from embedps.data.columns import Columns
from embedps.data.unit_reader import NUMERICS
from embedps.engine.row_padding import padded_size
from embedps.serving.inputs import Inputs, lengths_name, tensor_name
from embedps.serving.server.request_error import MAX_TEXT_BYTES, invalid
from embedps.serving.server.request_size import MAX_LIST_VALUES
from embedps.serving.server.tensor_values import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The columns of records to score.

    Attributes:
      rows: how many records.
      floats: float32 [columns, rows].
      integers: int64 [columns, rows].
      lists: by column of lists the values, one list after another, and the lists' lengths.
    """

    rows: int
    floats: Array
    integers: Array
    lists: tuple[tuple[Array, Array], ...]

    def arguments(self) -> list[Array]:
        """Gives the arguments of a function with `RequestFormat.signature`."""
        flat = [array for pair in self.lists for array in pair]
        return [self.floats, self.integers, *flat]


def concatenate(requests: Sequence[Request]) -> Request:
    """Makes one request of several; the records keep their order."""
    if len(requests) == 1:
        return requests[0]
    return Request(
        rows=sum(request.rows for request in requests),
        floats=np.concatenate([request.floats for request in requests], axis=1),
        integers=np.concatenate([request.integers for request in requests], axis=1),
        lists=tuple(
            (np.concatenate([v for v, _ in column]), np.concatenate([n for _, n in column]))
            for column in zip(*(request.lists for request in requests), strict=True)
        ),
    )


def split(request: Request, *, max_rows: int, max_values: int) -> Iterator[Request]:
    """Gives the parts of a request in order, so that `concatenate` would make it of them.

    Args:
      request: of which there is one part if it has no records.
      max_rows: of a part.
      max_values: of a column of lists in a part, unless one record has more.
    """
    ends = [np.append(0, np.cumsum(lengths)) for _, lengths in request.lists]
    first = 0
    while True:
        last = min(first + max_rows, request.rows)
        for end in ends:
            beyond = int(np.searchsorted(end, end[first] + max_values, side="right"))
            last = min(last, max(beyond - 1, first + 1))
        yield Request(
            rows=last - first,
            floats=request.floats[:, first:last],
            integers=request.integers[:, first:last],
            lists=tuple(
                (values[end[first] : end[last]], lengths[first:last])
                for (values, lengths), end in zip(request.lists, ends, strict=True)
            ),
        )
        first = last
        if first >= request.rows:
            return


def pad(request: Request) -> Request:
    """Repeats the last record as `engine.row_padding.pad` does."""
    more = padded_size(request.rows) - request.rows
    if more == 0:
        return request

    def padded(matrix: Array) -> Array:
        made = np.empty([matrix.shape[0], matrix.shape[1] + more], matrix.dtype)
        made[:, : matrix.shape[1]] = matrix
        made[:, matrix.shape[1] :] = matrix[:, -1:]
        return made

    def repeated(values: Array, lengths: Array) -> tuple[Array, Array]:
        last = values[len(values) - lengths[-1] :]
        return np.concatenate([values, np.tile(last, more)]), np.append(
            lengths, np.repeat(lengths[-1:], more)
        )

    return Request(
        rows=request.rows + more,
        floats=padded(request.floats),
        integers=padded(request.integers),
        lists=tuple(repeated(*each) for each in request.lists),
    )


class Format(Protocol):
    """What the requests of a signature hold; see RequestFormat."""

    @property
    def specs(self) -> Mapping[str, tf.TensorSpec]:
        """The tensors by name."""

    @property
    def lists(self) -> tuple[str, ...]:
        """The columns of lists."""

    @property
    def list_values(self) -> frozenset[str]:
        """The names of the tensors of their values."""

    @property
    def missing(self) -> Mapping[str, int | bytes]:
        """What a missing id is, by tensor of ids."""

    @property
    def width(self) -> int:
        """How many numbers a record becomes, besides the values of its lists."""

    def check_names(self, names: Set[str]) -> None:
        """Checks the names of a request's tensors."""

    def request(self, given: Mapping[str, Array]) -> Request:
        """Makes a request of its tensors."""


def check_names(specs: Mapping[str, tf.TensorSpec], names: Set[str]) -> None:
    """Checks the names of a request's tensors.

    Raises:
      RequestError: one is absent or unknown.
    """
    if set(names) != specs.keys():
        said = [_listed(each) for each in (specs, specs.keys() - names, names - specs.keys())]
        raise invalid(
            f"a request must have the tensors {said[0]} but lacks {said[1] or 'none'} and has "
            f"{said[2] or 'no others'} besides"
        )


def _listed(names: Iterable[str]) -> str:
    """Joins names, each cut to what an error has room for."""
    return ", ".join(name[:MAX_TEXT_BYTES] for name in sorted(names))


class RequestFormat:
    """What the requests of a model hold: a tensor per column, and one more of a list's lengths.

    Attributes:
      specs: the tensors by name.
      lists: the columns of lists.
      list_values: the names of the tensors of their values.
      missing: what a missing id is, by tensor of ids.
      floats, integers: the columns of a Request's matrices.
      width: how many numbers a record becomes, besides the values of its lists.
    """

    def __init__(self, columns: Columns, *, missing_id: int) -> None:
        """Takes the columns that the model's predictions depend on.

        Raises:
          UsageError: two columns' tensors would have one name.
        """
        self.specs: dict[str, tf.TensorSpec] = Inputs(columns, missing_id=missing_id).specs()
        self.lists = (*columns.id_lists, *columns.float_lists)
        self.list_values = frozenset(map(tensor_name, self.lists))
        ids = (*columns.ids, *columns.id_lists)
        self.missing: Mapping[str, int | bytes] = dict.fromkeys(map(tensor_name, ids), missing_id)
        self._numerics, self._float_lists = columns.numerics, columns.float_lists
        singles = [name for name in columns.names if name not in self.lists]
        singles.sort(key=lambda name: name not in columns.numerics)  # the numbers' matrix is first
        self.floats = [n for n in singles if self._dtype(n) == tf.float32]
        self.integers = [n for n in singles if self._dtype(n) == tf.int64]
        self.width = len(columns.names)

    def signature(self) -> list[tf.TensorSpec]:
        """Gives the specs of `Request.arguments`."""
        matrices = ((self.floats, tf.float32), (self.integers, tf.int64))
        specs = [tf.TensorSpec([len(names), None], dtype) for names, dtype in matrices]
        for name in self.lists:
            specs += [tf.TensorSpec([None], self._dtype(name)), tf.TensorSpec([None], tf.int64)]
        return specs

    def columns(self, floats: tf.Tensor, integers: tf.Tensor, *lists: tf.Tensor) -> dict[str, Any]:
        """Gives a batch of columns, in a tf.function, of `Request.arguments`."""
        made: dict[str, Any] = {NUMERICS: tf.transpose(floats[: len(self._numerics)])}
        made |= dict(zip(self.floats, tf.unstack(floats), strict=True))
        made |= dict(zip(self.integers, tf.unstack(integers), strict=True))
        for name, values, lengths in zip(self.lists, lists[::2], lists[1::2], strict=True):
            made[name] = tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
        return made

    def zeros(self, rows: int) -> Request:
        """Makes a request of zeros and empty lists."""
        return self.request(self.zero_tensors(rows))

    def zero_tensors(self, rows: int) -> dict[str, Array]:
        """Makes the tensors of a request of zeros and empty lists."""
        given = {}
        for name, spec in self.specs.items():
            given[name] = np.zeros(rows, spec.dtype.as_numpy_dtype)
        return given | {tensor_name(n): given[tensor_name(n)][:0] for n in self.lists}

    def request(self, given: Mapping[str, Array]) -> Request:
        """Makes a request of its tensors; a tensor of one row counts for all rows.

        Args:
          given: by name the vectors, of the dtypes of `specs`.

        Raises:
          RequestError: a tensor is absent or unknown, or the rows differ.
        """
        self.check_names(given.keys())
        return self._request(given)

    def check_names(self, names: Set[str]) -> None:
        """Checks the names of a request's tensors.

        Raises:
          RequestError: one is absent or unknown.
        """
        check_names(self.specs, names)

    def _request(self, given: Mapping[str, Array]) -> Request:
        by_row = {n: len(given[tensor_name(n)]) for n in (*self.floats, *self.integers)}
        by_row |= {n: len(given[lengths_name(n)]) for n in self.lists}
        rows = 0 if 0 in by_row.values() else max(by_row.values(), default=0)
        for name, found in by_row.items():
            if found not in (1, rows):
                raise invalid(
                    f"the tensors of a request must have one row or all {rows}, but that of column "
                    f"{name!r} has {found}"
                )
        floats = _matrix(given, self.floats, rows, np.dtype(np.float32))
        lists = [given[tensor_name(name)] for name in self._float_lists]
        if any(np.isinf(each).any() for each in (floats, *lists)):
            names = (*self.floats, *self._float_lists)
            name = next(n for n in names if np.isinf(given[tensor_name(n)]).any())
            raise invalid(
                f"column {name!r} must have numbers that are finite in float32, or NaN where they "
                "are missing"
            )
        return Request(
            rows=rows,
            floats=floats,
            integers=_matrix(given, self.integers, rows, np.dtype(np.int64)),
            lists=tuple(self._list(given, name, rows) for name in self.lists),
        )

    def _list(self, given: Mapping[str, Array], name: str, rows: int) -> tuple[Array, Array]:
        values, lengths = given[tensor_name(name)], given[lengths_name(name)]
        # In this order: lengths of a hostile request could overflow their sum.
        if np.any(lengths < 0) or np.any(lengths > len(values)) or lengths.sum() != len(values):
            raise invalid(
                f"the lengths of the lists of column {name!r} must be 0 or more and add up to its "
                f"{len(values)} values"
            )
        if len(lengths) != rows:  # one list for all rows
            if rows * len(values) > MAX_LIST_VALUES:
                raise invalid(
                    f"column {name!r} must have at most {MAX_LIST_VALUES} values in a request but "
                    f"has {rows} times {len(values)}"
                )
            values, lengths = np.tile(values, rows), np.repeat(lengths, rows)
        return values, lengths

    def _dtype(self, column: str) -> tf.DType:
        return self.specs[tensor_name(column)].dtype


def _matrix(
    given: Mapping[str, Array], names: Sequence[str], rows: int, dtype: np.dtype[Any]
) -> Array:
    matrix = np.empty([len(names), rows], dtype)
    for place, name in enumerate(names):
        if rows:
            matrix[place] = given[tensor_name(name)]
    return matrix
