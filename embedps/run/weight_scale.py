"""Tells weights that are far from 1, which multiply the loss and so move all learning rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedps.data.arrow_errors import naming
from embedps.data.dataset import Dataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FAR_WEIGHT = 10
"""Times that a mean weight may be above or below 1, which learning rates bear."""


def are_far(weights: NDArray[np.float32]) -> bool:
    """Tells whether weights are far from 1 on average; weights of 0 alone are not."""
    mean = float(weights.mean(dtype="float64")) if len(weights) else 0.0
    return mean > FAR_WEIGHT or 0 < mean < 1 / FAR_WEIGHT


def far_weights(dataset: Dataset) -> str:
    """Says in one line that a label's weights are far from 1, by one row group to train on.

    Returns:
      an empty text if they are not, or there are none.

    Raises:
      DatasetError: the row group cannot be read.
    """
    import pyarrow.parquet as pq

    names = dict.fromkeys(label.weight or dataset.weight for label in dataset.labels)
    split = dataset.splits.get("train")  # a run that watches may begin without one
    files = split.files if split is not None else ()
    paths = (dataset.absolute_path(file) for file in files if file.rows)
    path = next((path for path in paths if path.exists()), None)  # it may be done with some
    for name in filter(None, names if path else ()):
        with naming(str(path)), pq.ParquetFile(path) as shard:
            weights = shard.read_row_group(0, columns=[name])[0].to_numpy()
        if are_far(weights):
            return (
                f"warning: the weights {name} have a mean of {weights.mean(dtype='float64'):g} in "
                f"the first {len(weights):,} rows, and multiply the loss, so that learning rates "
                "and penalties do not fit: divide the weights by their mean"
            )
    return ""
