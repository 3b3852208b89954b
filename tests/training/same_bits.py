"""Runs whose checkpoints must have the same bits."""

from pathlib import Path
from typing import Any

import numpy as np

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.run.summary import read_evaluations
from tests.builders import dense_of, latest
from tests.checkpoint.readers import read_chain

FIELDS: dict[str, Any] = {
    "sparse_learning_rate": 0.2,
    "dense_learning_rate": 0.05,
    "dense_optimizer": "adagrad",
    "eval": "inline",
}
OF_A_RUN = ("number", "secs", "lag_secs", "time")
"""What a score has that another run of the same bits has not."""


def assert_same_checkpoint(first: Path, second: Path, *, num_scores: int = 2) -> None:
    """The same values and scores, to the bit."""
    assert_same_values(first, second)
    scores = [
        [{k: v for k, v in e.items() if k not in OF_A_RUN} for e in read_evaluations(d)]
        for d in (first, second)
    ]
    assert scores[0] == scores[1]
    assert len(scores[0]) == num_scores


def assert_same_values(first: Path, second: Path) -> None:
    """The same rows, with their optimizer slots and steps, and variables, to the bit."""
    for group in {t["group"] for t in latest(first).tables}:
        ours, theirs = (
            read_chain(CheckpointDirectory(d), latest(d), group).to_pandas().sort_values("id")
            for d in (first, second)
        )
        assert ours.to_dict("list").keys() == theirs.to_dict("list").keys()
        for name in ours:
            left, right = list(ours[name]), list(theirs[name])
            assert all(np.array_equal(a, b) for a, b in zip(left, right, strict=True)), name
    ours_dense, theirs_dense = dense_of(first), dense_of(second)
    assert ours_dense.keys() == theirs_dense.keys()
    for name, value in ours_dense.items():
        np.testing.assert_array_equal(value, theirs_dense[name], name)
