"""The pages of the reference that are made of the code are equal to it."""

import re
import subprocess
import sys

import embedps
from tests.builders import ROOT
from tools import reference_pages

ADVICE = "run `python -m tools.reference_pages`"


def test_the_page_of_flags_is_that_of_the_parsers():
    assert reference_pages.FLAGS.read_text() == reference_pages.flags_page(), ADVICE


def test_the_list_of_names_is_that_of_the_docstrings():
    page = reference_pages.API.read_text()
    assert page == reference_pages.api_page(page), ADVICE


def test_the_page_of_metrics_is_that_of_the_declarations_and_the_alerts():
    page = reference_pages.METRICS.read_text()
    assert page == reference_pages.metrics_page(page), ADVICE


def test_the_list_has_every_public_name():
    names = re.findall(r"^- `(?:embedps\.)?([\w.]+)`: \S", reference_pages.API.read_text(), re.M)
    assert set(embedps.__all__) - {"__version__"} <= set(names)


def test_a_flag_on_the_page_is_one_of_the_commands_help():
    command = [sys.executable, "-m", "embedps.predict", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    page = reference_pages.FLAGS.read_text()
    section = page[page.index("\n## embedps predict") : page.index("\n## embedps export")]
    on_the_page = set(re.findall(r"^`(--[\w-]+)", section, re.M))
    of_the_help = set(re.findall(r"^  (--[\w-]+)", done.stdout, re.M))
    assert on_the_page == of_the_help - {"--help", "--config"}
