"""Runs the code of a page as a reader would, in one directory.

In a page's order: a fenced block with a title is a file of that name; `python` runs in one
interpreter, `bash` in a shell. Other blocks (`sh`, `text`, indented ones) are only shown.
"""

from __future__ import annotations

import linecache
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests import forked
from tests.forked import ROOT

_BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$', re.M | re.S
)
# What `benchmarks docs` and `tools.reference_pages` write.
_GENERATED = re.compile(r"<!-- [^>]+ -->\n.*?<!-- end -->", re.S)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block, and the line of the page at which its code begins."""

    language: str
    title: str | None
    code: str
    line: int

    @property
    def runs(self) -> bool:
        return self.language in ("python", "bash")


def pages() -> list[Path]:
    """README, what stands beside it, and every page of docs/."""
    beside = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "README.md"]
    return [*beside, ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def written_words(page: Path) -> int:
    """Counts the words, with a letter or digit, that a person wrote on a page."""
    text = page.read_text(encoding="utf-8")
    if text.startswith("# Flags\n"):
        return 0
    text = _GENERATED.sub("", text)
    return len([word for word in text.split() if re.search(r"\w", word)])


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            language=m["language"],
            title=m["title"],
            code=m["code"],
            line=text.count("\n", 0, m.start("code")) + 1,
        )
        for m in _BLOCK.finditer(text)
    ]


def run_page(page: Path, directory: Path) -> str:
    """Runs a page's code in a directory; returns what it printed.

    Raises:
      AssertionError: the code failed; says how.
    """
    program = f"import tests.pages as pages; pages.execute({str(page)!r}, globals())"
    return run_python("-c", f"import sys; sys.path.insert(1, {str(ROOT)!r}); {program}", directory)


def run_python(*arguments: str | Path, timeout_secs: float = 280) -> str:
    """Runs Python in the directory that is the last argument; returns what it printed."""
    *command, directory = arguments
    binaries = str(Path(sys.executable).parent)
    done = forked.run(
        [*command],
        cwd=directory,
        env={**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_secs,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def execute(page: str, namespace: dict[str, object]) -> None:
    """Runs a page's blocks in this process and in the working directory."""
    for block in blocks(Path(page)):
        if block.title:
            Path(block.title).write_text(block.code, encoding="utf-8")
        if block.language == "bash":
            subprocess.run(["bash", "-euc", block.code], check=True)
        elif block.language == "python":
            # Known to linecache: AutoGraph looks at the source of a network's call.
            name = f"<{Path(page).name}:{block.line}>"
            lines = block.code.splitlines(keepends=True)
            linecache.cache[name] = (len(block.code), None, lines, name)
            exec(compile(block.code, name, "exec"), namespace)
        sys.stdout.flush()
