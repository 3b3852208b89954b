"""A runner may fit the transforms at two places at once: each writes the same description."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from embedps.errors import DatasetError
from embedps.features.table_columns import Feature
from embedps.features.table_schema import Table
from embedps.features.transform_steps import RareIds
from embedps.features.transforms import Transforms

WRITERS = 4


def make_transforms() -> Transforms:
    table = Table.parse(
        {
            "column": [
                {"name": "label", "as": "label"},
                {"name": "id", "as": "categorical", "type": "integer"},
            ],
            "feature": [{"name": "f", "from": "id", "transform": [{"min_count": 2}]}],
        }
    )
    (feature,) = (f for f in table.features if f.name == "f")
    step = RareIds(count=2, file="_transforms/f.arrow", kept=np.arange(1000))
    fitted = Feature(**{**vars(feature), "steps": (step,)})
    return Transforms(table=table.with_features((fitted,)))


def test_descriptions_saved_at_two_places_at_once_are_whole(tmp_path: Path):
    transforms = make_transforms()
    barrier = Barrier(WRITERS)

    def save(_: int) -> None:
        for _ in range(30):
            barrier.wait(timeout=60)
            transforms.save(tmp_path)
            features = {f.name: f for f in Transforms.load(tmp_path).table.features}
            (step,) = features["f"].steps
            assert isinstance(step, RareIds)
            np.testing.assert_array_equal(step.kept, np.arange(1000))

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(save, range(WRITERS)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["_transforms", "_transforms.json"]


@pytest.mark.parametrize("file", ["../f.arrow", "/tmp/f.arrow", "_transforms/../../f.arrow"])
def test_ids_that_a_step_keeps_lie_inside_the_dataset(tmp_path: Path, file: str):
    make_transforms().save(tmp_path)
    path = tmp_path / "_transforms.json"
    path.write_text(path.read_text().replace("_transforms/f.arrow", file))
    with pytest.raises(DatasetError, match="file must be inside the dataset, got"):
        Transforms.load(tmp_path)


@pytest.mark.parametrize("ids", [np.array([2, 1]), np.array([1.5]), np.array(["a"])])
def test_ids_that_a_step_keeps_are_ascending_integers(tmp_path: Path, ids: Any):
    make_transforms().save(tmp_path)
    batch = pa.record_batch({"id": ids})
    with pa.ipc.new_file(tmp_path / "_transforms" / "f.arrow", batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(DatasetError, match="must be an Arrow file of ids, ascending"):
        Transforms.load(tmp_path)
