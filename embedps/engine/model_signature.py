"""The model's signature in a manifest: what must be equal to resume, besides the tables."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_dense
from embedps.checkpoint.format.manifest import Manifest
from embedps.data.transforms_digest import difference
from embedps.engine.dense_optimizer import NUM_OPTIMIZER_SLOTS
from embedps.engine.step_model import StepModel
from embedps.errors import DimMismatchError
from embedps.tables.specs import FeatureSpec

_NAMES = {
    "dense_optimizer": "the network's optimizer",
    "label": "the label's column",
    "missing_id": "the id of what is missing",
    "numerics": "numeric column",
    "features": "feature",
}


def signature_of(model: StepModel, dense_optimizer: str | None = None) -> dict[str, Any]:
    """Makes the field `model` of a manifest.

    Args:
      model: whose columns are described; tables are in another field of the manifest.
      dense_optimizer: the kind of the network's optimizer; None if nothing is trained.
    """
    signature: dict[str, Any] = {
        "label": ", ".join(model.columns.label_names),
        "missing_id": model.recommender.missing_id,
        "numerics": list(model.columns.numerics),
        "features": [describe(f) for f in model.features],
    }
    if model.transforms:
        signature["transforms"] = model.transforms
    return (
        signature if dense_optimizer is None else {"dense_optimizer": dense_optimizer} | signature
    )


def describe(feature: FeatureSpec) -> dict[str, Any]:
    """Makes an entry of the field "features"."""
    described: dict[str, Any] = {
        "combiner": feature.combiner if feature.ragged else None,
        "name": feature.name,
        "table": feature.table_name,
    }
    if feature.max_length is not None:
        described["max_length"] = feature.max_length
    return described


def check_signature(manifest: Manifest, ours: Mapping[str, Any]) -> None:
    """Checks that a checkpoint is of this model; fields absent from the manifest are not compared.

    Raises:
      DimMismatchError: a field differs.
    """
    for key, value in ours.items():
        theirs = manifest.model.get(key, value)
        if key == "transforms":
            check_transforms(manifest, value)
        elif theirs != value:
            raise _differs(key, value, theirs)


def check_transforms(manifest: Manifest, digest: str) -> None:
    """Checks that a dataset's values mean what those that a checkpoint was trained on mean.

    Args:
      digest: of the dataset's transforms; one that is empty, on either side, is not compared.

    Raises:
      DimMismatchError: the checkpoint was trained on values of other transforms.
    """
    trained = str(manifest.model.get("transforms", ""))
    if other := difference(digest, trained, made_of="the dataset that the run was trained on"):
        raise DimMismatchError(f"the dataset does not fit the checkpoint: {other}")


def check_optimizer(
    manifest: Manifest, directory: CheckpointDirectory, kind: str, model: StepModel
) -> None:
    """Checks the optimizer by the shapes in the dense file, if the manifest does not name it.

    Args:
      manifest: of `directory`.
      kind: the optimizer of this run.
      model: whose variables come first in the file.

    Raises:
      DimMismatchError: the shapes fit another optimizer, but not this one.
      CorruptCheckpointError: the file cannot be read.
    """
    if "dense_optimizer" in manifest.model or manifest.dense is None:
        return
    stored = [array.shape for array in read_dense(directory.file(manifest.dense)).values()]
    shapes = [tuple(v.shape) for v in model.variables]
    optimizer_slots = [tuple(v.shape) for v in model.model.trainable_variables]
    fitting = [
        each
        for each, n in NUM_OPTIMIZER_SLOTS.items()
        if stored == [*shapes, (), *(optimizer_slots * n)]
    ]
    if fitting and kind not in fitting:
        raise _differs("dense_optimizer", kind, fitting[0])


def _differs(key: str, ours: Any, theirs: Any) -> DimMismatchError:
    what, flag = _NAMES[key], ""
    if key == "dense_optimizer":
        flag = f" (--dense-optimizer {theirs})"
    elif isinstance(ours, list) and isinstance(theirs, list):
        pairs = enumerate(itertools.zip_longest(ours, theirs))
        i, (ours, theirs) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        what = f"{what} {i}"
    return DimMismatchError(
        f"{what} is {_short(ours)}, the checkpoint has {_short(theirs)}: resume with what it was "
        f"trained with{flag}, or start a new model directory with --from this one"
    )


def _short(value: Any) -> str:
    return "none" if value is None else f"{value!r:.100}"
