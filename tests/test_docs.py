"""The pages of docs/ and the examples: their code runs as printed, their links lead somewhere."""

import csv
import gzip
import re
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml

from embedps.run.config import TrainConfig
from tests.builders import ROOT
from tests.pages import blocks, pages, run_page, run_python, written_words
from tests.processors import STOCK_BOUND

DOCS = ROOT / "docs"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# What a page's code must print, in order. CLICKS and CLICKS-DLRM are those of the quickstart.
PRINTS = {
    "quickstart.md": (r"20,000 rows read = 20,000 written", r"base", r"best AUC: 0\.[678]\d"),
    "guides/checkpoints.md": (r"all as written", r"\d+ rows at Position"),
    "guides/clusters.md": (r"done: 2/2 units, 18,\d{3} examples",),
    "guides/from-tfrs-or-keras.md": (r"done: 4/4 units, 36,\d{3} examples",),
    "guides/long-lived-tables.md": (r"MinCount\(count=3, expire_steps=1000000\) zeros",),
    "guides/models.md": (
        r"300 users to score; 300 users, 200 items",
        r"recall@20 0\.",
        r"200 items\n",
    ),
    "guides/predicting.md": (r"2 of 2 files scored", r"'user'", r"\[0\.\d+"),
    "guides/preprocessing.md": (r"1,000 rows read = 1,000 written", r"'price_group': 1"),
    "guides/reading-checkpoints.md": (
        r"user\.parquet: ",
        r"frequency",
        r"norm",
        r"\d+ rows\n",
        r"float32",
    ),
    "guides/scores.md": (r"stopped early: the AUC is above 0\.55", r"done: "),
    "guides/serving.md": (r"signatures serving_default, examples", r"'user'\]", r"\(3,\)"),
    "guides/tuning.md": (r"done: ", r"done: 4/4 units, 36,\d{3} examples"),
    "guides/watching.md": (r'"later.parquet".*"auc": 0\.', r"stopped; .* \d/3 units"),
    "guides/your-model.md": (r"done: 2/2 units", r"Epoch 2/2", r"val_auc", r"done: 2/2 units"),
    "guides/your-own-input.md": (r"Epoch 2/2",),
    "tutorial.md": (
        r"100,000 rows read = 100,000 written \+ 0 bad",
        r"done: \d+/\d+ units, 360,432 examples",
        r"(0\.\d{3}  .*\n){10}",
    ),
}
STAND_ALONE = ("quickstart.md", "tutorial.md")
MOST_WORDS = 1500  # of a guide
MOST_WRITTEN = 30_000  # of README and all pages of docs/, but for what is generated


def test_the_guide_states_the_bound_that_exports_are_tested_to() -> None:
    for page in (DOCS / "guides" / "scores.md", ROOT / "README.md"):
        assert f"within {STOCK_BOUND:f}" in page.read_text()


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory in which the quickstart was run, and what it printed."""
    directory = tmp_path_factory.mktemp("quickstart")
    return directory, run_page(DOCS / "quickstart.md", directory)


def page_name(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def test_the_pages_with_code_are_those_that_run():
    found = {p for p in pages() if p.is_relative_to(DOCS) and any(b.runs for b in blocks(p))}
    assert {page_name(page) for page in found} == set(PRINTS)


@pytest.mark.parametrize("page", sorted((DOCS / "guides").glob("*.md")), ids=page_name)
def test_a_guide_is_short(page: Path):
    assert len(page.read_text().split()) <= MOST_WORDS


def test_all_pages_together_can_be_read():
    read = [page for page in pages() if DOCS in page.parents]
    assert sum(map(written_words, [ROOT / "README.md", *read])) <= MOST_WRITTEN


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_what_runs_has_no_placeholder(name: str):
    code = "".join(block.code for block in blocks(DOCS / name) if block.runs)
    assert not re.search(r"\b(DATA|MODEL|C\d)\b", code)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_quickstart_does_what_it_says(quickstart: tuple[Path, str]):
    check_output("quickstart.md", quickstart[1])


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", sorted(set(PRINTS) - set(STAND_ALONE)))
def test_a_guide_does_what_it_says_after_the_quickstart(
    name: str, quickstart: tuple[Path, str], tmp_path: Path
):
    (tmp_path / "CLICKS").symlink_to(quickstart[0] / "CLICKS")
    shutil.copytree(quickstart[0] / "CLICKS-DLRM", tmp_path / "CLICKS-DLRM")
    check_output(name, run_page(DOCS / name, tmp_path))


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_tutorial_goes_from_files_to_predictions(samples: Path, tmp_path: Path):
    write_movielens(samples, tmp_path / "ml-100k")
    out = run_page(DOCS / "tutorial.md", tmp_path)
    check_output("tutorial.md", out)
    scores = out.partition("Held-out scores")[2].splitlines()
    aucs = [float(row.split("│")[2]) for row in scores if row.startswith("│")]
    assert aucs[-1] > 0.77  # the mean of each movie's ratings gives less
    predictions = [float(p) for p in re.findall(r"^(0\.\d{3})  ", out, re.M)]
    assert predictions == sorted(predictions, reverse=True)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("script", "prints"),
    [
        ("own_model.py", r"best held-out AUC: 0\.[789]"),
        ("local_cluster.py", r"step \d+: held-out AUC 0\.\d{4}\n[\s\S]*done: "),
        ("follow_checkpoints.py", r"[\d,]+ rows of 26 tables are those of the last checkpoint"),
    ],
)
def test_an_example_runs_as_it_is(script: str, prints: str, tmp_path: Path):
    out = run_python(ROOT / "examples" / script, tmp_path / "work", tmp_path)
    assert re.search(prints, out), out


def test_every_example_is_listed_and_run():
    listed = re.findall(r"^\| `(\w+\.py)`", (ROOT / "examples" / "README.md").read_text(), re.M)
    assert sorted(listed) == [script.name for script in EXAMPLES]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
            assert anchor in map(slug, headings), f"{page}: {link}"


def test_files_that_the_pages_name_are_there():
    named = re.compile(r"`((?:embedps|pipelines|models|benchmarks|tests|tools|deploy)/[\w/.-]+)`")
    for page in pages():
        for name in named.findall(page.read_text()):
            found = (ROOT / name).exists() or list(ROOT.glob(f"{name}.*"))
            yours = name == "tests/folder" or "NAME" in name
            assert found or yours, f"{page}: there is no {name}"


def test_every_page_is_in_the_navigation():
    def leaves(node) -> list[str]:
        if isinstance(node, str):
            return [node]
        parts = node.values() if isinstance(node, dict) else node
        return [leaf for part in parts for leaf in leaves(part)]

    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(leaves(site["nav"])) == sorted(page_name(p) for p in DOCS.rglob("*.md"))


def test_the_configuration_file_of_the_page_is_one():
    (block,) = (b for b in blocks(DOCS / "reference" / "commands.md") if b.language == "toml")
    keys = tomllib.loads(block.code)
    flat = {k: v for k, v in keys.items() if not isinstance(v, dict)}
    for group in keys.values():
        flat |= group if isinstance(group, dict) else {}
    config = TrainConfig.from_options(**flat)
    assert (config.cluster.num_ps, config.checkpoint.keep_best) == (2, 1)


def check_output(name: str, out: str) -> None:
    at = 0
    for pattern in PRINTS[name]:
        found = re.compile(pattern).search(out, at)
        assert found, f"{name} must print {pattern!r} after what came before:\n{out[-6000:]}"
        at = found.end()


def slug(heading: str) -> str:
    """A heading's anchor, as Python-Markdown makes it."""
    words = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


def write_movielens(samples: Path, directory: Path) -> None:
    """Writes the samples as MovieLens 100K's own files."""
    (block,) = (b for b in blocks(DOCS / "tutorial.md") if b.title == "join.py")
    match = re.search(r"GENRES = \(\n(.*?)\n\)", block.code, re.S)
    assert match
    genres = " ".join(re.findall(r'"([^"]*)"', match[1])).split()
    directory.mkdir()
    with gzip.open(samples / "movielens_100k_u.data.gz") as data:
        (directory / "u.data").write_bytes(data.read())

    def rows(name: str) -> list[list[str]]:
        with open(samples / name, encoding="utf-8", newline="") as file:
            return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]

    with open(directory / "u.item", "w", encoding="latin-1", errors="replace") as file:
        for movie, title, year, names in rows("movielens_100k_item.txt"):
            flags = ["1" if genre in names.split() else "0" for genre in genres]
            print(
                "|".join([movie, f"{title} ({year})", f"01-Jan-{year}", "", "", *flags]), file=file
            )
    with open(directory / "u.user", "w", encoding="latin-1") as file:
        for row in rows("movielens_100k_user.txt"):
            print("|".join(row), file=file)
