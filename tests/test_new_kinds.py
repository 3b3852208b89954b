"""To add a kind touches at most 4 files, and then it works: tests/new_kinds.py adds one of each."""

import functools
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests import commands, new_kinds
from tests.builders import ROOT, latest, write_dataset

_MOST_FILES = 4
_FOLDERS = ("embedps", "models", "pipelines", "tests")
_TRANSFORM = """
import numpy as np, tensorflow as tf
from embedps.features.transform_steps import parse_step
from embedps.serving.stock_transforms import _apply_step
step = parse_step("sqrt")
assert parse_step(step.to_json()) == step
given = np.array([4.0, -1.0, 0.25])
np.testing.assert_array_equal(step.apply(given), [2, 0, 0.5])
np.testing.assert_array_equal(_apply_step(step, tf.constant(given)), [2, 0, 0.5])
"""


@pytest.mark.parametrize("kind", new_kinds.KINDS)
def test_kind_is_added_by_few_files(tmp_path: Path, kind: str) -> None:
    edits = new_kinds.KINDS[kind]
    assert len(edits) <= _MOST_FILES
    for folder in _FOLDERS[:3]:
        _copy(folder, tmp_path, _sources_only)
    new_kinds.apply(edits, tmp_path)


@pytest.mark.slow
def test_new_kinds_train(tmp_path: Path) -> None:
    """Its kernels are compiled anew where the edits reach."""
    copy, data, model = tmp_path / "copy", tmp_path / "data", tmp_path / "model"
    for folder in _FOLDERS:
        _copy(folder, copy, shutil.ignore_patterns("__pycache__"))
    for edits in new_kinds.KINDS.values():
        new_kinds.apply(edits, copy)

    run = functools.partial(commands.run, cwd=copy, timeout=None, PYTHONPATH=str(copy))
    run("-m", "tests.new_kinds_program", str(tmp_path / "rows"))
    run("-c", _TRANSFORM)
    write_dataset(data)
    run(
        *("-m", "embedps.train", f"--data={data}", f"--model-dir={model}", "--model=row_sums"),
        *("--embedding-dim=4", "--batch-size=64", "--unit-rows=512", "--eval=none"),
        *("--sparse-optimizer=signum", "--admit-share=0.5", "--min-updates=2"),
    )
    run("-m", "embedps.export", f"--model-dir={model}", f"--output={tmp_path / 'export'}")
    tables = latest(model).tables
    assert {(t["optimizer"]["kind"], t["admission"]["kind"]) for t in tables} == {
        ("signum", "share")
    }


def _copy(folder: str, to: Path, ignore: Callable[[Any, list[str]], Iterable[str]]) -> None:
    # embedps/models and embedps/pipelines are links to the folders beside embedps.
    shutil.copytree(ROOT / folder, to / folder, ignore=ignore, symlinks=True)


def _sources_only(folder: str, names: list[str]) -> list[str]:
    return [n for n in names if n.startswith("_build") or n.endswith((".so", "__pycache__"))]
