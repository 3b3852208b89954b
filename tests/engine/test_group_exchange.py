"""Steps that do not wait for slow or lost workers: NumPy's sums, and nobody is waited for."""

import pytest

from tests.commands import run_program


@pytest.mark.multiprocess
@pytest.mark.parametrize("checks", [["order"], pytest.param([], marks=pytest.mark.slow)], ids=str)
def test_steps_go_on_without_workers_that_are_late_or_lost(tmp_path, checks):
    """In short, only that a part joins a group once all servers hold it."""
    run_program("-m", "tests.engine.group_program", tmp_path, *checks)
