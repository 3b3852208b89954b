"""Help and flags of the pipelines' commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from embedps.errors import UsageError
from embedps.pipelines import describe, generate, ingest


@pytest.mark.parametrize("command", ["criteo", "ingest", "generate", "describe"])
def test_help_imports_neither_tensorflow_nor_beam(command: str):
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['pipelines.{command}', '--help']\n"
        f"try: runpy.run_module('pipelines.{command}', run_name='__main__')\n"
        "finally: print([m for m in ('tensorflow', 'apache_beam') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: python -m embedps.pipelines.{command}")
    assert result.stdout.endswith("\n[]\n")


_INGEST = {"--input": "a.tsv", "--output": "out", "--schema": "criteo"}


@pytest.mark.parametrize(
    ("main", "flags", "name"),
    [
        *(
            (ingest.main, _INGEST | {flag: text}, flag)
            for flag in (*_INGEST, "--eval-input", "--eval-from", "--split-key")
            for text in ("", "a\0b")
        ),
        (generate.main, {"--rows": "1", "--output": ""}, "--output"),
        (describe.main, {"": ""}, "DIR"),
        (describe.main, {"--html": "", ".": "."}, "--html"),
    ],
)
def test_empty_path_or_nul_is_one_usage_error(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    main: Callable[[Sequence[str]], None],
    flags: dict[str, str],
    name: str,
):
    monkeypatch.chdir(tmp_path)
    argv = [text for flag, value in flags.items() for text in dict.fromkeys((flag, value))]
    with pytest.raises(UsageError, match=f"argument {name}: it must not (be empty|have a NUL)"):
        main(argv)
    assert not os.listdir(tmp_path)
