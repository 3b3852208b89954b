"""The kernels' rooms include each other in one order, which their README states."""

import re

from embedps.kernels import build

_ROW = re.compile(r"^\| `(\w+)` \|[^|]*\| ?([^|]*) ?\|$", re.MULTILINE)
_INCLUDE = re.compile(r'^#include "embedps/kernels/(\w+)/[\w.]+"', re.MULTILINE)


def allowed_includes() -> dict[str, set[str]]:
    rows = _ROW.findall((build.HERE / "README.md").read_text())
    return {room: set(re.findall(r"`(\w+)`", rooms)) for room, rooms in rows}


def sources() -> list:
    return [*build.headers(), *build.HERE.glob("*/*.cc")]


def test_readme_lists_every_room():
    assert set(allowed_includes()) == {path.parent.name for path in sources()}


def test_rooms_have_an_order():
    above: set[str] = set()
    for room, rooms in allowed_includes().items():
        assert rooms <= above, f"{room} may include only rooms that come before it"
        above.add(room)


def test_sources_include_only_the_rooms_that_the_readme_allows():
    allowed = allowed_includes()
    wrong = []
    for path in sources():
        room = path.parent.name
        rooms = allowed[room] | {room}
        if path.stem.endswith(("_test", "_testing")):
            rooms |= {"testing"}
        wrong += [
            f"{room}/{path.name} includes {included}/"
            for included in _INCLUDE.findall(path.read_text())
            if included not in rooms
        ]
    assert not wrong


def test_only_ops_include_tensorflow():
    including = {
        path.parent.name for path in sources() if '#include "tensorflow/' in path.read_text()
    }
    assert including == {"ops"}


def test_bazel_compiles_the_sources_that_use_arrow_with_arrow():
    text = (build.ROOT / "BUILD").read_text()
    listed = re.search(r"ARROW_SOURCES = \[(.*?)\]", text, re.DOTALL)
    assert listed is not None
    found = [str(p.relative_to(build.ROOT)) for p in build.library_sources() if build.uses_arrow(p)]
    assert set(found) <= set(re.findall(r'"(.*)"', listed[1]))
