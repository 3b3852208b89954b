"""A model whose rows do not fit the memory of a run."""

import functools
from pathlib import Path
from typing import Any

from embedps.engine.recommender import Recommender
from embedps.tables import FeatureSpec, TableSpec
from tests.builders import SumModel

DIM = 128
ROWS = 8000
WIDE = Recommender(
    build=functools.partial(
        SumModel,
        features=[FeatureSpec(name="row", table="row")],
        tables=[TableSpec(name="row", embedding_dim=DIM)],
    )
)
BODY_BYTES = 4 * (DIM + 1)
"""Of a row with row-wise Adagrad, besides its header."""


def tiered(directory: Path) -> dict[str, Any]:
    """The options of a run with little memory."""
    return {"max_memory_bytes": 2 * 2_200_000, "spill_dir": str(directory)}
