"""The glossary and the code use each word in one meaning, and none that was given up."""

import ast
import collections
import dataclasses
import functools
import re
from pathlib import Path

import embedps

ROOT = Path(__file__).parent.parent
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
TERMS, PEERS = GLOSSARY.split("## Our words and theirs")

RETIRED_NAMES = {
    *("WorkerGroup", "worker_group", "groups_of"),  # group: of tables
    *("worker_follower",),  # follower: of checkpoints
    *("initial_accumulator", "beta1", "beta2"),
}
RETIRED_OPTIONS = {"dim", "batch_rows", "checkpoint_rows", "checkpoint_slots"}


@functools.cache
def modules() -> dict[str, ast.Module]:
    """The modules of the product, by path."""
    files = (
        path
        for folder in ("embedps", "models", "pipelines")
        for path in (ROOT / folder).rglob("*.py")
    )
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}


def first_cells(text: str) -> list[str]:
    rows = re.findall(r"^\| (.+?) \|", text, re.MULTILINE)
    return [row for row in rows if row not in ("word", "embedps")]


def test_each_word_stands_once():
    words = [word for cell in first_cells(TERMS) for word in cell.split(", ")]
    assert len(words) > 50
    assert not [w for w, n in collections.Counter(words).items() if n > 1]


def test_names_of_ours_are_in_the_code():
    names = {name for cell in first_cells(PEERS) for name in re.findall(r"`([A-Z][\w.]+)", cell)}
    assert len(names) > 9
    for name in names:
        owner, _, field = name.partition(".")
        made = getattr(embedps, owner)
        known = {f.name for f in dataclasses.fields(made)} if dataclasses.is_dataclass(made) else ()
        assert not field or field in known or hasattr(made, field), name


def test_a_class_of_the_package_has_a_name_of_its_own():
    paths = collections.defaultdict(list)
    for path, module in modules().items():
        for node in module.body:
            if path.startswith("embedps/") and isinstance(node, ast.ClassDef):
                paths[node.name].append(path)
    assert len(paths) > 200
    public = {name: found for name, found in paths.items() if not name.startswith("_")}
    assert not {name: found for name, found in public.items() if len(found) > 1}


def test_what_was_given_up_is_not_used():
    for path, module in modules().items():
        assert not any(name in path for name in RETIRED_NAMES), path
        for node in ast.walk(module):
            names = {getattr(node, f, None) for f in ("id", "attr", "arg", "name")}
            kept = path.endswith("engine/network_variables.py")  # arguments of TensorFlow's ops
            used = {n for n in names if isinstance(n, str)} & RETIRED_NAMES
            assert kept or not used, f"{path}:{node.lineno}: {used}"  # type: ignore[attr-defined]


def test_options_say_what_they_hold():
    """An option of rows is a number of them, unless it is a folder."""
    options = 0
    for path, module in modules().items():
        for node in ast.walk(module):
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call)):
                continue
            if not (isinstance(node.value.func, ast.Name) and node.value.func.id == "option"):
                continue
            options += 1
            given = {k.arg: k.value for k in node.value.keywords}
            flag = given.get("flag")
            name = str(flag.value) if isinstance(flag, ast.Constant) else ast.unparse(node.target)
            assert name not in RETIRED_OPTIONS, f"{path}:{node.lineno}: {name}"
            if re.search(r"(^|_)rows$", name) and "metavar" not in given:
                assert "int" in ast.unparse(node.annotation), f"{path}:{node.lineno}: {name}"
    assert options > 100
