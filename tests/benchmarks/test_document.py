from benchmarks import document


def test_the_page_is_of_the_results():
    page = document.PAGE.read_text()
    assert document.update(page) == page, "run `python -m benchmarks docs`"


def test_a_block_without_results_says_so_and_the_rest_stays(tmp_path):
    page = "before\n<!-- results/none.json -->\nold\n<!-- end -->\nafter\n"
    assert document.update(page, tmp_path) == page.replace("old", "Not measured yet.")


def test_a_block_may_be_of_another_machine(tmp_path):
    page = "<!-- results/other/none.json -->\nold\n<!-- end -->\n"
    assert document.update(page, tmp_path) == page.replace("old", "Not measured yet.")
