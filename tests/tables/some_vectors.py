"""Functions of ids that initializers name. Servers import them, without all of TensorFlow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

DIM = 4


def of_ids(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """The first four digits of each id to the base of 1,000, and 1."""
    powers = 1000 ** np.arange(DIM)
    return (1 + ids[:, None] // powers % 1000).astype(np.float32)


def of_one_shape(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    return np.zeros([1, DIM], np.float32)


def of_one_dtype(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.zeros([len(ids), DIM])


def of_no_array(ids: npt.NDArray[np.int64]) -> list[int]:
    return ids.tolist()


def of_infinities(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    return np.where(of_ids(ids) == 8, np.float32(np.inf), of_ids(ids))


def of_none(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    raise KeyError(int(ids[0]))
