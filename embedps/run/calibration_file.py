"""MODEL/calibration.json: the layer that `embedps calibrate` fitted for a run's predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from embedps.checkpoint.format.manifest import Manifest
from embedps.engine.calibration import Calibration, Curve
from embedps.errors import UsageError
from embedps.run.summary import write_json
from embedps.storage.file_io import read_bytes

FILE_NAME = "calibration.json"
_FORMAT = "embedps.calibration"


def write_calibration(model_dir: Path, calibration: Calibration) -> None:
    """Writes the layer, in place of an earlier one."""
    write_json(model_dir / FILE_NAME, {"format": _FORMAT, **to_json(calibration)})


def to_json(calibration: Calibration) -> dict[str, Any]:
    """Gives the layer as files have it."""
    curves = {
        name: {"x": list(c.x), "y": list(c.y)} if c.x else {"scale": c.scale, "shift": c.shift}
        for name, c in calibration.curves.items()
    }
    return {
        "method": calibration.method,
        "checkpoint": calibration.checkpoint and dict(calibration.checkpoint),
        "data": dict(calibration.data),
        "curves": curves,
    }


def read_calibration(model_dir: Path) -> Calibration | None:
    """Reads the layer; None if there is none.

    Raises:
      UsageError: the file is not what `write_calibration` writes.
    """
    path = model_dir / FILE_NAME
    try:
        content = json.loads(read_bytes(path))
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        checkpoint = content["checkpoint"]
        if checkpoint is not None:
            checkpoint = {"number": int(checkpoint["number"]), **checkpoint}
        return Calibration(
            method=str(content["method"]),
            curves={str(name): _curve(curve) for name, curve in content["curves"].items()},
            checkpoint=checkpoint,
            data=dict(content["data"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, repr(error)) from error
    except UsageError as error:
        raise _damaged(path, str(error)) from error


def _curve(content: dict[str, Any]) -> Curve:
    given: dict[str, Any] = {k: tuple(v) if k in ("x", "y") else v for k, v in content.items()}
    return Curve(**given)


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is no calibration ({why}): run embedps calibrate again")


def check_fresh(calibration: Calibration, manifest: Manifest, model_dir: Path) -> None:
    """Checks that a layer was fitted on a checkpoint.

    Raises:
      UsageError: it was fitted on another one.
    """
    fitted = calibration.checkpoint
    if fitted is None:
        return
    same = (fitted["number"], fitted.get("history", "")) == (manifest.number, manifest.history)
    if not same:
        raise UsageError(
            f"{model_dir / FILE_NAME} must be fitted on checkpoint {manifest.number} but was on "
            f"{fitted['number']}: run embedps calibrate {model_dir} again, or give --uncalibrated"
        )
