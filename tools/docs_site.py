"""Makes links of the pages to files outside of docs/ work on the site too: a hook of MkDocs.

A page links to `../benchmarks/results/train.png`, which is right in the repository. On the site
this is a copy of the file at `source/benchmarks/results/train.png`.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "source"
_LINK = re.compile(r"(?<=\]\()(?P<path>(?:\.\./)+[^)#\s]+)")


def outside_links(page: Path) -> dict[str, Path]:
    """Finds a page's links to files of the repository outside of docs/, by their text."""
    found = {m["path"]: (page.parent / m["path"]).resolve() for m in _LINK.finditer(_read(page))}
    docs = ROOT / "docs"
    return {text: path for text, path in found.items() if not path.is_relative_to(docs)}


def on_files(files: Any, config: Any) -> Any:
    """Adds a copy of each file that a page outside of docs/ links to."""
    from mkdocs.structure.files import File

    pages = [Path(page.abs_src_path) for page in files.documentation_pages()]
    targets = {target for page in pages for target in outside_links(page).values()}
    for target in sorted(targets):
        if target.is_file():
            name = f"{FOLDER}/{target.relative_to(ROOT).as_posix()}"
            # A page would be made of a Markdown file, with links of its own: it is shown as text.
            name += ".txt" if target.suffix == ".md" else ""
            files.append(File.generated(config, name, content=target.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites these links; a link to a file that is absent stays, and MkDocs reports it."""
    source = Path(page.file.abs_src_path)
    targets = outside_links(source)
    up = "../" * (len(PurePosixPath(page.file.src_uri).parts) - 1)

    def rewrite(match: re.Match[str]) -> str:
        target = targets.get(match["path"])
        if target is None or not target.is_file():
            return match["path"]
        name = target.relative_to(ROOT).as_posix() + (".txt" if target.suffix == ".md" else "")
        return f"{up}{FOLDER}/{name}"

    return _LINK.sub(rewrite, markdown)


def _read(page: Path) -> str:
    return page.read_text(encoding="utf-8")
