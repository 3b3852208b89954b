"""Objects are compiled again when what they are made of changes, and only then."""

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest

from embedps.kernels import build


@pytest.mark.parametrize("name", ["store/row_store.cc", "files/row_file_reader.cc"])
def test_included_headers_are_the_compilers(name: str) -> None:
    source = build.HERE / name
    done = subprocess.run(
        ["g++", *build.compile_flags(source), "-MM", str(source)],
        capture_output=True,
        text=True,
        check=True,
    )
    # "name.o: source header \ header", and "\ " for a space; what is of no room is the wheels'.
    words = (word.replace("\\ ", " ") for word in re.split(r"(?<!\\)\s+", done.stdout))
    read = {Path(word) for word in words if "/embedps/kernels/" in word}
    assert len(read) > 1
    assert set(build.included(source)) == read


def test_a_changed_header_makes_only_its_sources_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tmp_path / "embedps" / "kernels" / "store"
    room.mkdir(parents=True)
    (room / "deep.h").write_text("int deep();\n")
    (room / "near.h").write_text('#include "embedps/kernels/store/deep.h"\n')
    with_header, without = room / "a.cc", room / "b.cc"
    with_header.write_text('#include "embedps/kernels/store/near.h"\n')
    without.write_text("int b() { return 1; }\n")
    monkeypatch.setattr(build, "ROOT", tmp_path)

    def digests() -> list[str]:
        return [build._file_digest(path, ["g++"]) for path in (with_header, without)]

    before = digests()
    (room / "deep.h").write_text("long deep();\n")
    after = digests()
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_a_new_wheel_makes_all_sources_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    source = build.library_sources()[0]
    before = build._file_digest(source, ["g++"])
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0")
    assert build._file_digest(source, ["g++"]) != before


def test_a_copied_checkout_keeps_its_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    for name in ("first", "second"):
        source = tmp_path / name / "a.cc"
        source.parent.mkdir()
        source.write_text("int a() { return 1; }\n")
        monkeypatch.setattr(build, "ROOT", source.parent)
        digests.append(build._file_digest(source, ["g++", "-c", str(source)]))
    assert digests[0] == digests[1]
