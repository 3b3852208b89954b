"""Cuts lists, and makes one list of lists of lists, as a column declares it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedps.features.arrow_kinds import is_list


def plain_lists(array: pa.Array) -> pa.Array:
    """Makes lists of any kind a ListArray without nulls, which become empty lists."""
    if pa.types.is_list(array.type) and not array.null_count:
        return array
    # Not by a cast: Arrow's of views gives lists after a null that are wrong.
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return pa.ListArray.from_arrays(_offsets(lengths), array.flatten())


def cut_lists(array: pa.Array, most: int) -> pa.Array:
    """Keeps the first elements of each list; the last if `most` is below 0; all if it is 0.

    Args:
      array: a ListArray without nulls.
      most: how many.
    """
    starts = array.offsets.to_numpy()
    lengths = np.diff(starts)
    if not most or not len(lengths) or lengths.max() <= abs(most):
        return array
    kept = np.minimum(lengths, abs(most))
    first = starts[:-1] if most > 0 else starts[1:] - kept
    offsets = _offsets(kept)
    places = np.arange(kept.sum()) + np.repeat(first - offsets.to_numpy()[:-1], kept)
    return pa.ListArray.from_arrays(offsets, array.values.take(pa.array(places)))


def flatten(array: pa.Array) -> pa.Array:
    """Makes one list of each row's lists."""
    array = plain_lists(array)
    inner = plain_lists(array.flatten())
    starts, ends = array.offsets.to_numpy(), inner.offsets.to_numpy()
    offsets = ends[starts - starts[0]] - ends[0]
    return pa.ListArray.from_arrays(pa.array(offsets), inner.flatten())


def cut_levels(array: pa.Array, cuts: Sequence[int]) -> pa.Array | None:
    """Cuts lists of lists, a number per level from the outer one, and makes them one list.

    Returns:
      None if there are fewer levels.
    """
    if not is_list(array.type):
        return None
    most, *others = cuts
    array = cut_lists(plain_lists(array), most)
    if not others:
        return array
    inner = cut_levels(array.values, others)
    return None if inner is None else flatten(pa.ListArray.from_arrays(array.offsets, inner))


def cut_values(value: Any, cuts: Sequence[int]) -> Any:
    """Does with a Python list what `cut_levels` does with an array; raises ValueError."""
    if type(value) is not list:
        return value
    most, *others = cuts
    kept = value[:most] if most > 0 else value[most:]
    if not others:
        return kept
    if wrong := [each for each in kept if each is not None and type(each) is not list]:
        raise ValueError(f"must have lists of as many levels as cut, got {wrong[0]!r:.40} in one")
    return [*chain.from_iterable(cut_values(each, others) for each in kept if each is not None)]


def flat_values(values: Sequence[Any]) -> Iterator[Any]:
    """Does with a Python list what `flatten` does with an array, at all levels."""
    lists = [iter(values)]  # not by recursion: a line chooses how deep its lists are
    while lists:
        for value in lists[-1]:
            if type(value) is list:
                lists.append(iter(value))
                break
            yield value
        else:
            lists.pop()


def _offsets(lengths: Any) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
