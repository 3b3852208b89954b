"""Refs: a move is one write with its history; what a ref names stays; mistakes are one line."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from embedps.checkpoint import refs
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.refs import move_ref, number_of, read_ref, read_refs
from embedps.checkpoint.retention import KeepNewest, collect_garbage
from embedps.errors import CheckpointError, CorruptCheckpointError, UsageError
from embedps.storage import file_io
from tests.checkpoint.builders import make_run
from tests.commands import checkpoint_command as main


@pytest.fixture
def directory(tmp_path: Path) -> CheckpointDirectory:
    return make_run(tmp_path / "m").directory


def test_ref_keeps_who_moved_it_from_what_to_what(directory, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ann")
    times: Iterator[float] = iter([1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(time, "time", lambda: next(times))
    for to in (1, 3, 3, 2, None):
        move_ref(directory, "prod", to)
    path = directory.refs_dir / "prod.json"
    moves = json.loads(path.read_bytes())["moves"]
    assert [(m["at"], m["before"], m["after"]) for m in moves] == [
        (1, None, 1),
        (2, 1, 3),
        (3, 3, 2),
        (4, 2, None),
    ]
    assert {m["by"].partition("@")[0] for m in moves} == {"ann"}
    assert read_refs(directory) == []
    with pytest.raises(UsageError, match="has no ref 'prod': there are none"):
        read_ref(directory, "prod")


def test_ref_keeps_its_newest_moves(directory, monkeypatch):
    monkeypatch.setattr(refs, "_MAX_MOVES", 3)
    for to in (1, 2, 3, 1):
        move_ref(directory, "prod", to)
    assert [m.after for m in read_ref(directory, "prod").moves] == [2, 3, 1]


def test_ref_goes_by_another(directory):
    move_ref(directory, "canary", 2)
    move_ref(directory, "prod", "canary")
    move_ref(directory, "canary", 3)
    assert [(r.name, r.number) for r in read_refs(directory)] == [("canary", 3), ("prod", 2)]
    assert number_of(directory, "prod") == number_of(directory, 2) == 2


@pytest.mark.parametrize("name", ["42", "../x", "a/b", "", "é", "a b", "x" * 101])
def test_wrong_name_is_refused(directory, name):
    with pytest.raises(UsageError, match="a ref's name must have letters"):
        move_ref(directory, name, 1)


def test_wrong_target_changes_nothing(directory):
    move_ref(directory, "prod", 1)
    with pytest.raises(CheckpointError, match=r"there is no manifest 9, there are \[1, 2, 3\]"):
        move_ref(directory, "prod", 9)
    with pytest.raises(UsageError, match="has no ref 'canary': there are prod"):
        move_ref(directory, "prod", "canary")
    with pytest.raises(UsageError, match="has no ref 'canary'"):
        move_ref(directory, "canary", None)
    assert len(read_ref(directory, "prod").moves) == 1


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"moves": [1]}', '{"moves": [{"at": 1, "by": "a", "before": null}]}']
)
def test_damaged_ref_stops_retention(directory, text):
    file_io.write_bytes(directory.refs_dir / "prod.json", text.encode())
    with pytest.raises(CorruptCheckpointError, match=r"prod\.json: must be a ref but is not"):
        collect_garbage(directory, [KeepNewest(1)])
    assert directory.numbers() == [1, 2, 3]


def test_what_a_ref_names_stays_and_what_it_left_goes(directory):
    move_ref(directory, "prod", 1)
    assert collect_garbage(directory, [KeepNewest(1)]).manifests == (2,)
    directory.check_present(directory.read(1))
    move_ref(directory, "prod", 3)
    assert collect_garbage(directory, [KeepNewest(1)]).manifests == (1,)


def test_ref_that_comes_while_manifests_go_is_kept(directory, monkeypatch):
    """As on an object store, where no lock keeps the two apart."""
    rename = file_io.rename

    def tag_before(source: Path, target: Path) -> None:
        monkeypatch.setattr(file_io, "rename", rename)
        with monkeypatch.context() as unlocked:
            unlocked.setattr(CheckpointDirectory, "exclusive", lambda _: nullcontext(True))
            move_ref(directory, "prod", 1)
        rename(source, target)

    monkeypatch.setattr(file_io, "rename", tag_before)
    assert collect_garbage(directory, [KeepNewest(1)]).manifests == (2,)
    assert directory.numbers() == [1, 3]


def test_killed_move_leaves_the_ref_as_it_was(directory):
    move_ref(directory, "prod", 1)
    program = (
        "import os, sys\n"
        "from embedps.checkpoint.directory import CheckpointDirectory\n"
        "from embedps.checkpoint import refs\n"
        "from embedps.storage import file_io\n"
        "file_io.arm_fault('io.rename')\n"
        "refs.move_ref(CheckpointDirectory(sys.argv[1]), 'prod', 3)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(directory.path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert read_ref(directory, "prod").number == 1
    move_ref(directory, "prod", 3)
    assert [m.after for m in read_ref(directory, "prod").moves] == [1, 3]


def test_command_makes_moves_lists_and_removes(directory, capsys):
    path = str(directory.path)
    assert main(["tag", path]) == 0
    assert capsys.readouterr().out == f"{path} has no refs\n"
    assert main(["tag", path, "prod", "1"]) == 0
    assert f"{path}: prod: manifest 1 (new), by " in capsys.readouterr().out
    assert main(["tag", path, "canary", "3"]) == 0
    assert main(["tag", path, "prod", "canary"]) == 0
    capsys.readouterr()
    assert main(["tag", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("canary: manifest 3 (new), by ")
    assert lines[1].startswith("prod: manifest 3 (before 1), by ")
    assert main(["tag", path, "prod"]) == 0
    moves = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in moves] == [
        "prod: manifest 3 (before 1)",
        "prod: manifest 1 (new)",
    ]
    assert main(["tag", path, "prod", "--remove"]) == 0
    assert "prod: removed (before 3), by " in capsys.readouterr().out
    assert main(["inspect", path]) == 0
    out = capsys.readouterr().out
    assert "ref canary: manifest 3 (new), by " in out
    assert "ref prod" not in out


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["prod", "9"], "there is no manifest 9", 1),
        (["prod", "other"], "has no ref 'other'", 2),
        (["1", "2"], "a ref's name must have", 2),
        (["--remove"], "--remove needs a ref's name", 2),
        (["prod"], "has no ref 'prod': there are none", 2),
        (["prod", "-1"], "to must be at least 0", 2),
    ],
)
def test_wrong_command_is_one_line(directory, capsys, arguments, said, code):
    assert main(["tag", str(directory.path), *arguments]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_tools_take_a_ref_where_they_take_a_number(directory, capsys):
    path = str(directory.path)
    move_ref(directory, "old", 1)
    for arguments in (["inspect", path], ["stats", path], ["verify", path]):
        assert main([*arguments, "--number", "1"]) == 0
        by_number = capsys.readouterr().out
        assert main([*arguments, "--number", "old"]) == 0
        assert capsys.readouterr().out == by_number
    assert main(["diff", path, "old", "3"]) == 0
    by_ref = capsys.readouterr().out
    assert main(["diff", path, "1", "3"]) == 0
    assert capsys.readouterr().out == by_ref
    # What a ref names is verified beside the newest.
    assert main(["verify", path]) == 0
    assert capsys.readouterr().out.startswith("2 manifests, ")
    assert main(["rollback", path, "--to", "old"]) == 0
    assert "manifest 4 is manifest 1 again" in capsys.readouterr().out
    assert dataclasses.replace(directory.read(4), number=1).chain == directory.read(1).chain
