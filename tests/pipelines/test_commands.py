"""Help and flags of the pipelines' commands."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from embedps.errors import UsageError
from embedps.pipelines import describe, generate, ingest
from embedps.pipelines.ingestion.options import parse_options
from tests.commands import run

COMMANDS = ("criteo", "infer", "ingest", "generate", "interactions", "describe")


def test_help_imports_neither_tensorflow_nor_beam_nor_a_second_copy_of_the_package():
    code = (
        "import runpy, sys\n"
        f"for name in {COMMANDS}:\n"
        "    sys.argv = [f'pipelines.{name}', '--help']\n"
        "    try: runpy.run_module(f'pipelines.{name}', run_name='__main__', alter_sys=True)\n"
        "    except SystemExit as end: assert not end.code\n"
        "    assert not {'tensorflow', 'apache_beam'} & set(sys.modules), name\n"
        "    copies = [m for m in sys.modules if m.partition('.')[0] == 'pipelines']\n"
        "    assert copies == ['pipelines'], name\n"
        "    assert [m for m in sys.modules if m.startswith('embedps.pipelines.')]\n"
    )
    result = run("-c", code)
    assert result.stderr == ""
    shown = re.findall(r"^usage: python -m embedps\.pipelines\.(\w+)", result.stdout, re.M)
    assert tuple(shown) == COMMANDS


_INGEST = {"--input": "a.tsv", "--output": "out", "--schema": "criteo"}


@pytest.mark.parametrize(
    ("main", "flags", "name"),
    [
        *(
            (ingest.main, _INGEST | {flag: text}, flag[2:].replace("-", "_"))
            for flag in (*_INGEST, "--eval-input", "--eval-from", "--split-key")
            for text in ("", "a\0b")
        ),
        (generate.main, {"--rows": "1", "--output": ""}, "output"),
        (describe.main, {"": ""}, "directory"),
        (describe.main, {"--html": "", ".": "."}, "html"),
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
    with pytest.raises(UsageError, match=f"^{name} must not (be empty|have a NUL)"):
        main(argv)
    assert not os.listdir(tmp_path)


def test_command_is_told_by_a_file(tmp_path: Path):
    file = tmp_path / "log.toml"
    file.write_text(f'rows = 10\noutput = "{tmp_path}/log.tsv"\nseed = 3\n')
    generate.main([f"--config={file}", "--rows=20"])
    report = json.loads((tmp_path / "log.tsv.json").read_text())
    assert (report["rows"], report["seed"]) == (20, 3)
    file.write_text('input = ["a", "b"]\noutput = "o"\n[held_out]\neval_input = ["c"]\n')
    read = parse_options(["--config", str(file), "--direct_num_workers=2"], "criteo")
    assert (read.input, read.output, read.table.name) == (("a", "b"), Path("o"), "criteo")
    assert (read.held_out.eval_input, read.split.fraction) == (("c",), None)
    assert read.beam_flags == ("--direct_num_workers=2",)
    file.write_text('input = ["a"]\noutput = "o"\nschema = "avazu"\n')
    with pytest.raises(UsageError, match=r"has .'schema'., which this command does not take"):
        parse_options(["--config", str(file)], "criteo")
    assert parse_options(["--config", str(file)]).table.name == "avazu"
