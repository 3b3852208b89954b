import re

from benchmarks import page as results_page
from benchmarks.report import RESULTS


def test_the_page_is_of_the_results():
    page = results_page.PAGE.read_text()
    assert results_page.update(page) == page, "run `python -m benchmarks docs`"


def test_each_result_is_on_the_page_and_no_other_figure():
    page = results_page.PAGE.read_text()
    stored = {path.relative_to(RESULTS).with_suffix("") for path in RESULTS.rglob("*.json")}
    assert set(re.findall(r"<!-- results/([\w/-]+)\.json -->", page)) == set(map(str, stored))
    typed = re.sub(r"<!-- (results/|in short).*?<!-- end -->", "", page, flags=re.DOTALL)
    assert not re.findall(r"\d (?:x|ms|s|us|MB|GB|%)\b|\d%|\d\.\d{2,}(?!\.)|\dk\b", typed)


def test_a_block_without_results_says_so_and_the_rest_stays(tmp_path):
    page = "before\n<!-- results/none.json -->\nold\n<!-- end -->\nafter\n"
    assert results_page.update(page, tmp_path) == page.replace("old", "Not measured yet.")


def test_a_block_may_be_of_another_machine(tmp_path):
    page = "<!-- results/other/none.json -->\nold\n<!-- end -->\n"
    assert results_page.update(page, tmp_path) == page.replace("old", "Not measured yet.")
