"""A column of predictions, as files of scores have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from embedps.errors import UsageError


def score_column(name: str, values: npt.NDArray[Any], num_rows: int) -> pa.Array:
    """Makes a column of a prediction: numbers, or lists of equally many.

    Raises:
      UsageError: the prediction has no number or vector for each row.
    """
    if values.ndim not in (1, 2) or len(values) != num_rows or values.shape[1:] == (0,):
        raise UsageError(
            f"the model's output {name!r} must have a number or a vector per row, but has shape "
            f"{list(values.shape)} for {num_rows} rows"
        )
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if values.ndim == 1 or values.shape[1] == 1:
        return flat
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
