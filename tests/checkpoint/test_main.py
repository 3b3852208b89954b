"""`python -m embedps.checkpoint`: what it prints, and its exit codes."""

import dataclasses
import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest_json import to_json
from embedps.checkpoint.lease import write_lease
from tests.checkpoint.builders import make_run
from tests.commands import checkpoint_command as main
from tests.commands import table_command

SHARD = "delta-2/dim2/shard-0-of-2.arrow"


@pytest.fixture
def directory(tmp_path: Path) -> CheckpointDirectory:
    return make_run(tmp_path / "checkpoints").directory


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def test_verify_of_a_whole_checkpoint_is_quiet_and_zero(directory, capsys):
    assert main(["verify", str(directory.path)]) == 0
    assert capsys.readouterr().out.startswith("1 manifests, 7 files, ")
    assert main(["verify", str(directory.path), "--all"]) == 0
    assert capsys.readouterr().out.startswith("3 manifests, 9 files, ")
    assert main(["verify", str(directory.path), "--number", "1"]) == 0
    assert capsys.readouterr().out.startswith("1 manifests, 3 files, ")


def damage_flip(directory: CheckpointDirectory) -> str:
    entry = directory.read(3).chain[1].files[0]
    flip(directory.file(entry))
    return f"{SHARD}: xxh3_64 of bytes 0-{entry.bytes - 1}: expected {entry.blocks}, found "


def damage_truncate(directory: CheckpointDirectory) -> str:
    entry = directory.read(3).chain[1].files[0]
    os.truncate(directory.file(entry), entry.bytes - 8)
    return f"{SHARD}: bytes: expected {entry.bytes}, found {entry.bytes - 8}"


def damage_remove(directory: CheckpointDirectory) -> str:
    (directory.path / SHARD).unlink()
    return f"{SHARD}: content: expected a readable file, found No such file or directory"


def damage_swap(directory: CheckpointDirectory) -> str:
    """Two whole files under each other's name."""
    first, second = (directory.path / f"dense-{n}" / "dense.arrow" for n in (2, 3))
    assert first.stat().st_size == second.stat().st_size
    aside = directory.path / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    dense = directory.read(3).dense
    assert dense is not None
    where = f"xxh3_64 of bytes 0-{dense.bytes - 1}"
    return f"dense-3/dense.arrow: {where}: expected {dense.blocks}, found "


def damage_dense(directory: CheckpointDirectory) -> str:
    flip(directory.dense_path(3))
    return "dense-3/dense.arrow: xxh3_64 of bytes 0-"


def damage_manifest(directory: CheckpointDirectory) -> str:
    path = directory.manifest_path(3)
    path.write_bytes(path.read_bytes().replace(b'"step": 300', b'"step": 999'))
    return "manifests/00000003.json: content: expected a readable file, found field 'xxh3_64'"


def reseal(directory: CheckpointDirectory, **changes: Any) -> None:
    """Changes the newest manifest's entry of SHARD, with a checksum that fits."""
    manifest = directory.read(3)
    base, delta, last = manifest.chain
    entry = dataclasses.replace(delta.files[0], **changes)
    delta = dataclasses.replace(delta, files=(entry, *delta.files[1:]))
    changed = dataclasses.replace(manifest, chain=(base, delta, last))
    directory.manifest_path(3).write_bytes(to_json(changed))


def damage_rows(directory: CheckpointDirectory) -> str:
    reseal(directory, rows=7)
    return f"{SHARD}: rows: expected 7, found 2"


def damage_removed(directory: CheckpointDirectory) -> str:
    reseal(directory, removed=5)
    return f"{SHARD}: removed: expected 5, found 0"


def damage_dim(directory: CheckpointDirectory) -> str:
    manifest = directory.read(3)
    tables = tuple({**table, "dim": 64} for table in manifest.tables)
    changed = dataclasses.replace(manifest, tables=tables)
    directory.manifest_path(3).write_bytes(to_json(changed))
    return "base-1/dim2/shard-0-of-2.arrow: dim of C1: expected 64, found 2"


def damage_tables(directory: CheckpointDirectory) -> str:
    manifest = directory.read(3)
    changed = dataclasses.replace(manifest, tables=manifest.tables[:1])
    directory.manifest_path(3).write_bytes(to_json(changed))
    return f"{SHARD}: table: expected one of ['C1'], found 'C2'"


@pytest.mark.parametrize(
    "damage",
    [
        damage_flip,
        damage_truncate,
        damage_remove,
        damage_swap,
        damage_dense,
        damage_manifest,
        damage_rows,
        damage_removed,
        damage_dim,
        damage_tables,
    ],
)
def test_verify_names_file_field_expected_and_found(directory, capsys, damage):
    expected = damage(directory)
    assert main(["verify", str(directory.path)]) == 1
    out = capsys.readouterr().out
    assert f"{directory.path}/{expected}" in out
    assert "problems" in out.splitlines()[-1]


def test_verify_all_finds_manifests_that_contradict_each_other(directory, capsys):
    reseal(directory, xxh3_64="0" * 16)
    assert main(["verify", str(directory.path), "--all"]) == 1
    assert f"entry of {SHARD}: expected the other manifests' entry" in capsys.readouterr().out


def test_verify_reports_every_damaged_file(directory, capsys):
    damage_flip(directory)
    damage_dense(directory)
    assert main(["verify", str(directory.path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("2 problems")


def test_inspect_shows_chain_tables_and_leases(directory, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    then = time.time() - 600
    os.utime(directory.path / "delta-2", (then, then))
    write_lease(directory, "eval-0", 2, expire_secs=600)
    assert main(["inspect", str(directory.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "manifest 3 of 3 (1-3), step 300" in lines[0]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    by_name = {row[0]: row[1:] for row in cells if len(row) > 2}
    assert by_name["base-1"][:5] == ["", "100", "2", "9", "0"]
    assert by_name["delta-2"][:5] == ["1", "200", "2", "2", "1"]
    assert by_name["delta-3"][:5] == ["2", "300", "2", "1", "1"]
    assert by_name["dense-3"][:4] == ["", "300", "1", "1"]
    assert by_name["delta-2"][6:] == ["10 min", "eval-0"]
    assert by_name["delta-3"][7] == ""
    size = sum(file.stat().st_size for file in (directory.path / "delta-3").rglob("*.arrow"))
    assert by_name["delta-3"][5] == f"{size / 1024:.1f} KiB"
    assert by_name["C1"] == ["dim2", "2", "adagrad"]
    assert by_name["eval-0"][0] == "2"
    assert by_name["eval-0"][2] == str(os.getpid())


@pytest.mark.parametrize("command", ["inspect", "stats --details", "diff", "verify"])
def test_a_pipe_gets_whole_cells_in_lines_that_are_not_wrapped(
    directory, capsys, monkeypatch, command
):
    def shown(columns):
        monkeypatch.setenv("COLUMNS", columns)
        name, *flags = command.split()
        numbers = ["1", "3"] if name == "diff" else []
        assert main([name, str(directory.path), *numbers, *flags]) == 0
        return capsys.readouterr().out

    narrow = shown("20")
    assert "…" not in narrow
    # Ages may differ by a second.
    assert [len(line.split()) for line in narrow.splitlines()] == [
        len(line.split()) for line in shown("10000").splitlines()
    ]


def test_inspect_of_an_older_manifest_without_leases(directory, capsys):
    assert main(["inspect", str(directory.path), "--number", "1"]) == 0
    out = capsys.readouterr().out
    assert "no leases" in out
    assert "delta-2" not in out


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_remove])
def test_export_of_a_damaged_chain_fails_and_writes_nothing(directory, tmp_path, capsys, damage):
    damage(directory)
    output = tmp_path / "c1.npz"
    assert table_command("export", directory.path, "--table=C1", "--output", output) == 1
    assert SHARD in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_compact_says_what_it_made(directory, capsys):
    assert main(["compact", str(directory.path)]) == 0
    assert "manifest 4 with base-3: 9 rows, " in capsys.readouterr().out
    assert main(["compact", str(directory.path)]) == 0
    assert "nothing to merge" in capsys.readouterr().out


def test_diff_counts_by_table_and_writes_the_rows(directory, tmp_path, capsys):
    assert main(["diff", str(directory.path), "1", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "C1: 0 added, 2 changed, 0 removed",
        "C2: 1 added, 0 changed, 1 removed",
    ]
    output = tmp_path / "c1.parquet"
    arguments = [str(directory.path), "1", "3", "--table", "C1", "--output", str(output)]
    assert main(["diff", *arguments]) == 0
    assert capsys.readouterr().out == "C1: 0 added, 2 changed, 0 removed\n"
    rows = pq.read_table(output).sort_by("id")
    assert rows["id"].to_pylist() == [3, 4]
    assert rows["embedding"].to_pylist() == [[33.0, -33.0], [40.0, -40.0]]
    assert main(["diff", str(directory.path), "1", "3", "--output", str(output)]) == 2
    assert main(["diff", str(directory.path), "1", "3", "--table", "C9"]) == 2
    assert main(["diff", str(directory.path), "1", "8"]) == 1


def test_command_is_told_by_a_file(directory, tmp_path, capsys):
    file = tmp_path / "diff.toml"
    file.write_text(f'directory = "{directory.path}"\nbefore = 1\nafter = 3\ntable = "C1"\n')
    assert main(["diff", "--config", str(file)]) == 0
    assert capsys.readouterr().out == "C1: 0 added, 2 changed, 0 removed\n"
    assert main(["diff", f"--config={file}", str(directory.path), "3", "3", "--table=C2"]) == 0
    assert capsys.readouterr().out == "C2: 0 added, 0 changed, 0 removed\n"
    file.write_text("[selection]\nbefore_step = 0\n")
    assert main(["evict", str(directory.path), "--table=C1", "--config", str(file)]) == 0
    assert "no row of C1 is to go" in capsys.readouterr().out
    file.write_text("before = 1\n")
    assert main(["evict", str(directory.path), "--table=C1", "--config", str(file)]) == 2
    assert "has keys ['before']; it may have ['before_step'," in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "verify", "stats", "compact"])
def test_directory_without_a_manifest_is_one_error(tmp_path, capsys, command):
    assert main([command, str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err == f"embedps: {tmp_path} holds no manifest: nothing was committed there\n"
    assert main([command, str(tmp_path / "absent")]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_directory_that_may_not_be_read_is_one_line(directory, capsys, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    assert main(["inspect", str(directory.path)]) == 1
    err = capsys.readouterr().err
    assert err == f"embedps: {directory.manifests_dir}: Permission denied\n"


def test_wrong_arguments_exit_with_two(directory, capsys):
    path = str(directory.path)
    assert main(["verify", path, "--number", "1", "--all"]) == 2
    assert main(["inspect", path, "--number", "8"]) == 1
    capsys.readouterr()
    for arguments in (["diff", path], ["grow", path], []):
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith("embedps: ")
        assert "python -m embedps.checkpoint" in err
        assert err.count("\n") == 1


@pytest.mark.multiprocess
def test_every_command_runs_without_what_is_slow_to_import(directory, tmp_path):
    """As a process: its exit code is the command's."""
    code = (
        "import runpy, sys\n"
        "SLOW = ('tensorflow', 'keras', 'tf_keras', 'pandas', 'apache_beam', 'grpc')\n"
        "class Refuse:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in SLOW: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)\n"
    )
    root = Path(__file__).resolve().parents[2]

    def run(*arguments: str, module: str = "embedps.checkpoint") -> int:
        command = [sys.executable, "-c", code, module, *arguments]
        return subprocess.run(command, cwd=root, capture_output=True, check=False).returncode

    path = str(directory.path)
    commands = (
        ("inspect", path),
        ("verify", path),
        ("diff", path, "1", "3"),
        ("compact", path),
        ("evict", path, "--table", "C1", "--before-step", "1"),
    )
    for command in commands:
        assert run(*command) == 0
    output = str(tmp_path / "c1.safetensors")
    assert run("export", path, "--table=C1", "--output", output, module="embedps.table") == 0
    damage_flip(directory)
    assert run("verify", path, "--all") == 1
    assert run("verify", str(directory.path / "absent")) == 2


@pytest.mark.parametrize("given", ["", " ", "a\0b"])
def test_empty_directory_or_output_is_refused(directory, capsys, given):
    assert main(["inspect", given]) == 2
    assert "embedps: directory must not " in capsys.readouterr().err
    assert main(["diff", str(directory.path), "1", "3", "--table=C1", f"--output={given}"]) == 2
    assert "embedps: output must not " in capsys.readouterr().err


@pytest.mark.parametrize("number", [2**70, -1, 10**4000], ids=["large", "negative", "long"])
def test_number_of_no_manifest_is_one_line(directory, capsys, number):
    for arguments in (["inspect", f"--number={number}"], ["diff", "1", str(number)]):
        assert main([arguments[0], str(directory.path), *arguments[1:]]) in (1, 2)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("embedps: ")
