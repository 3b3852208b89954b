"""What a run leaves to read in its model directory: summary.json and evaluation.jsonl."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

from embedps.checkpoint.io import write_bytes
from embedps.checkpoint.objects import ObjectPath

SUMMARY_NAME = "summary.json"
EVALUATIONS_NAME = "evaluation.jsonl"
_KEYS = ("number", "step")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a small JSON file whole; NaN becomes null."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: clean(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [clean(v) for v in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    write_bytes(path, (json.dumps(clean(content), indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one where there is none."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def append_evaluation(model_dir: Path, content: dict[str, Any]) -> None:
    """Adds a line to a model directory's evaluation.jsonl; an object is put anew with it."""
    path = model_dir / EVALUATIONS_NAME
    line = json.dumps(content) + "\n"
    if isinstance(path, ObjectPath):
        before = path.read_text() if path.exists() else ""
        write_bytes(path, (before + line).encode())
        return
    with open(path, "a") as file:
        file.write(line)


def read_evaluations(model_dir: Path) -> list[dict[str, Any]]:
    """The lines of a model directory's evaluation.jsonl; a line cut short by a kill is left out."""
    try:
        lines = (model_dir / EVALUATIONS_NAME).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    evaluations = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            each = json.loads(line)
            if isinstance(each, dict) and all(isinstance(each.get(k), int) for k in _KEYS):
                evaluations.append(each)
    return evaluations


def versions() -> dict[str, str]:
    """Of this package and of what its results depend on."""
    names = ("embedps", "tensorflow", "tf-keras", "tensorflow-recommenders", "pyarrow", "numpy")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
