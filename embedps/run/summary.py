"""The results in a model directory: summary.json, evaluation.jsonl and restarts.json."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

from embedps.errors import CheckpointError
from embedps.score_names import EVALUATIONS_NAME
from embedps.storage.file_io import NoFileError, read_bytes, store_of, write_shared

SUMMARY_NAME = "summary.json"
RESTARTS_NAME = "restarts.json"
_KEYS = ("number", "step")
_SCORES = ("auc", "logloss", "normalized_entropy", "calibration")
_MEASURED = (
    "wall_secs",
    "examples_per_sec",
    "training",
    "checkpoint",
    "tables_memory_bytes",
    "table_statistics",
    "sync",
    "staleness",
    "ended_with",
)


def write_json(path: Path, content: dict[str, Any], *, compact: bool = False) -> None:
    """Writes a JSON file atomically, on one line if `compact`; NaN becomes null.

    Several processes may do so at once: those that share a scoring all complete the summary.
    """

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: clean(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [clean(v) for v in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    text = json.dumps(clean(content), indent=None if compact else 1)
    write_shared(path, (text + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; gives an empty one where there is none."""
    try:
        content = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_evaluations(model_dir: Path) -> list[dict[str, Any]]:
    """Reads the lines of a model directory's evaluation.jsonl; leaves out a truncated line."""
    return EvaluationReader(model_dir).new(partial=True)


class EvaluationReader:
    """Follows a model directory's evaluation.jsonl."""

    def __init__(self, model_dir: Path) -> None:
        self._path = model_dir / EVALUATIONS_NAME
        self._offset = 0

    def new(self, *, partial: bool = False) -> list[dict[str, Any]]:
        """Reads the lines that were written since the last call.

        Args:
          partial: take the text after the last newline as a line too.

        Raises:
          CheckpointError: the path is a directory or a FIFO.
        """
        try:
            with store_of(self._path).open(self._path) as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        except NoFileError as error:
            raise CheckpointError(f"{self._path}: {error.strerror}: remove it") from error
        if not partial:
            data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        evaluations = []
        for line in data.decode(errors="replace").splitlines():
            with suppress(ValueError, RecursionError):
                each = json.loads(line)
                if _is_evaluation(each):
                    evaluations.append(each)
        return evaluations


def _is_evaluation(line: Any) -> bool:
    """Whether a line is a well-formed evaluation: others may have changed the file."""

    def is_number(value: Any, kind: type[int] | tuple[type, ...]) -> bool:
        return isinstance(value, kind) and not isinstance(value, bool)

    return (
        isinstance(line, dict)
        and all(is_number(line.get(k), int) for k in _KEYS)
        and is_number(line.get("examples", 0), int)
        and all(line.get(k) is None or is_number(line[k], (int, float)) for k in _SCORES)
    )


def append_evaluation(model_dir: Path, evaluation: dict[str, Any]) -> None:
    """Appends a line to a model directory's evaluation.jsonl, as `Store.append_line` does.

    Raises:
      CheckpointError: it cannot be written.
    """
    path = model_dir / EVALUATIONS_NAME
    line = (json.dumps(evaluation) + "\n").encode()
    try:
        store_of(path).append_line(path, line)
    except OSError as error:
        raise CheckpointError(f"cannot write {str(path)!r}: {error}") from error


class Restarts:
    """Counts how often workers and evaluator were started again, in all runs of a directory.

    Each change is written to MODEL_DIR/restarts.json at once, so a killed client loses no count.
    """

    def __init__(self, model_dir: Path) -> None:
        self._path = model_dir / RESTARTS_NAME
        stored = read_json(self._path)
        self._before = {
            name: count if isinstance(count := stored.get(name), int) else 0
            for name in ("worker_restarts", "evaluator_restarts")
        }
        self._total = dict(self._before)

    def count(self, *, workers: int, evaluator: int) -> dict[str, int]:
        """Takes the counts of this process; returns those of all runs.

        A directory that cannot be written is no error: the next call tries again.
        """
        now = {"worker_restarts": workers, "evaluator_restarts": evaluator}
        total = {name: self._before[name] + more for name, more in now.items()}
        if total != self._total:
            with suppress(CheckpointError, OSError):
                write_json(self._path, total)
                self._total = total
        return total


def complete(
    result: dict[str, Any], before: dict[str, Any], config: dict[str, Any]
) -> dict[str, Any]:
    """Makes summary.json's content.

    Args:
      before: the old content of summary.json. If this run had nothing left to do, the old
        measurements stay.
      config: the run's, as config.json has it.
    """
    if not result["examples_per_sec"] and before:
        result = {**result, **{k: before[k] for k in _MEASURED if k in before}}
    return {**result, "versions": versions(), "config": config}


def versions() -> dict[str, str]:
    """Gives the versions of this package and of the packages that its results depend on."""
    names = ("embedps", "tensorflow", "tf-keras", "tensorflow-recommenders", "pyarrow", "numpy")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
