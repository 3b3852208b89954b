"""What a contributor meets: hooks that refuse faults, forms for issues, decisions in order."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.builders import ROOT

HOOKS = {
    hook["id"]: hook
    for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repo["hooks"]
}
DOC = '"""Nothing."""\n'
# By hook: a suffix, a text with a fault that the hook is for, and one without. No typo stands here.
PLANTED = {
    "ruff": (".py", f"{DOC}\nimport os\n", DOC),
    "ruff-format": (".py", "x = [1,2]\n", "x = [1, 2]\n"),
    "clang-format": (".cc", "int  x ;\n", "int x;\n"),
    "typos": (".md", "We rec" + "ieve rows.\n", "We receive rows.\n"),
}


def command_of(hook: str) -> list[str]:
    program, *arguments = HOOKS[hook]["entry"].split()
    return [str(Path(sys.executable).parent / Path(program).name), *arguments]


@pytest.mark.parametrize("hook", PLANTED)
def test_a_hook_refuses_a_fault_and_passes_what_has_none(hook: str, tmp_path: Path) -> None:
    suffix, *texts = PLANTED[hook]
    path = tmp_path / f"file{suffix}"
    for text, is_refused in zip(texts, (True, False), strict=True):
        path.write_text(text)
        command = [*command_of(hook), str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) is is_refused, done.stdout + done.stderr


def test_hooks_run_programs_of_the_environment_and_fetch_nothing() -> None:
    assert set(HOOKS) == {*PLANTED, "import-contract"}
    for name, hook in HOOKS.items():
        assert hook["language"] == "system"
        assert Path(command_of(name)[0]).is_file()


def test_forms_for_issues_have_what_github_asks_for() -> None:
    forms = [p for p in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if p.name != "config.yml"]
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description"} <= set(form), path
        ids = [part["id"] for part in form["body"]]
        assert len(set(ids)) == len(ids) > 0
        assert all(part["attributes"]["label"] for part in form["body"]), path
    assert len(forms) == 2


def test_decisions_are_numbered_and_listed_by_their_titles() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(
        r"^\| \[(\d{4})\]\((.+?)\) \| (.+) \|$", (folder / "index.md").read_text(), re.M
    )
    records = sorted(path for path in folder.glob("*.md") if path.name != "index.md")
    assert [name for _, name, _ in listed] == [path.name for path in records]
    for number, (text, name, title) in enumerate(listed, 1):
        assert int(text) == number == int(name[:4])
        page = (folder / name).read_text()
        assert page.startswith(f"# {number}. {title}\n\n**Decision.** ")
        assert "**Why.**" in page or "**Tried.**" in page, name
