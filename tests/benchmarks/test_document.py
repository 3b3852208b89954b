import json

from benchmarks import document
from benchmarks.report import RESULTS


def test_the_page_is_of_the_results():
    page = document.PAGE.read_text()
    assert document.update(page) == page, "run `python -m benchmarks docs`"


def test_a_block_without_results_says_so_and_the_rest_stays(tmp_path):
    page = "before\n<!-- results/none.json -->\nold\n<!-- end -->\nafter\n"
    assert document.update(page, tmp_path) == page.replace("old", "Not measured yet.")


def test_a_block_may_be_of_another_machine(tmp_path):
    page = "<!-- results/other/none.json -->\nold\n<!-- end -->\n"
    assert document.update(page, tmp_path) == page.replace("old", "Not measured yet.")


def test_the_page_of_the_pipelines_has_the_figures_of_its_results():
    page = (document.PAGE.parent / "reference" / "proofs.md").read_text()
    results = json.loads((RESULTS / "pipelines.json").read_text())
    for rate in results["rows_per_sec"].values():
        assert "{median:,.0f} ({min:,.0f} to {max:,.0f})".format(**rate) in page
    for size in results["peak_memory_mib"].values():
        assert f"{size['anonymous']:.0f} MiB" in page
